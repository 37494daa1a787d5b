"""What notebooks show: small static tables in which every text is escaped."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from sawlog._html import Markup, escaped, html_table
from sawlog.influence import Ranking, Scores, token_table
from sawlog.run_files._blocks import Block, Report
from tests.left_out import LEFT_OUT

ODD = '<img src=x onerror="alert(1)">\x1b[31m</td>'
TAGS = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "p"}


class Page(HTMLParser):
    """Collects the tags, attributes and texts of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data + "|"


def check(text: str, *shown: str) -> Page:
    page = Page(text)
    assert page.tags <= TAGS
    assert page.attributes <= {"style"}
    assert len(text) < 20_000
    for each in shown:
        assert each in page.text
    return page


@pytest.mark.skipif("jax" in LEFT_OUT, reason="needs jax, which is left out")
def test_a_logdict():
    import jax.numpy as jnp

    from sawlog import logdict

    logs = logdict({ODD: jnp.array([3.0, 2.0])}, step={ODD: jnp.arange(2)})
    check(logs._repr_html_(), "<img src=x", "\\x1b", "float32[2]", "[3., 2.]", "step [0, 1]")
    large = logdict({"w": jnp.arange(720.0).reshape(30, 4, 6), "odd": jnp.full((9, 9, 9), jnp.nan)})
    check(large._repr_html_(), "mean 359.5, from 0. to 719.", "729 values, none finite")
    assert "trend" not in check(large._repr_html_()).text.replace("|", " ").split()
    assert check(logdict()._repr_html_()).text.strip("|") == "logdict: empty"
    many = logdict({f"k{i}": jnp.zeros(1) for i in range(60)})
    check(many._repr_html_(), "60 keys", "and 10 more keys")


@pytest.mark.skipif("jax" in LEFT_OUT, reason="needs jax, which is left out")
def test_names_of_a_logdict_that_are_very_long_are_cut():
    import jax.numpy as jnp

    from sawlog import logdict

    name = "a" * 5000 + "z" * 5000
    logs = logdict({name: jnp.arange(2.0), "loss": jnp.zeros(1)}, step={name: jnp.arange(2)})
    steps = logdict({"loss": jnp.zeros(1)}, **{name: {"loss": jnp.zeros(1)}})
    for each in (logs, steps):
        check(each._repr_html_(), "a" * 40 + "…" + "z" * 40)
        assert max(map(len, repr(each).splitlines())) < 200
        assert "a" * 40 + "…" + "z" * 40 in repr(each)


@pytest.mark.skipif("jax" in LEFT_OUT, reason="needs jax, which is left out")
def test_numbers_of_a_logdict_have_a_trend():
    import jax
    import jax.numpy as jnp

    import sawlog

    def program(top):
        def body(carry, i):
            sawlog.log({"x": top - i, "array": jnp.ones(3) * i, "odd": jnp.log(-1.0 - i)}, step=i)
            sawlog.log({"some": i}, where=carry)
            return ~carry, None

        return jax.lax.scan(body, True, jnp.arange(16))

    blocks = "██▇▇▆▆▅▅▄▄▃▃▂▂▁▁"
    for logs in (
        sawlog.spool(program)(16.0)[1],
        sawlog.spool(jax.vmap(program))(jnp.array([15.0, 17.0]))[1],
        jax.vmap(sawlog.spool(program))(jnp.array([15.0, 17.0]))[1],
    ):
        cells = check(logs._repr_html_(), "trend").text.split("|")
        assert cells.count(blocks) == 1
        assert cells.count("x" * 16) == 1


def test_scores_and_rankings():
    ids = np.array([f"{ODD}{i}" for i in range(20)])
    values = np.arange(40.0).reshape(2, 20) - 5
    scores = Scores(np.array([ODD, "q"]), ids, values, about={"curvature": "ekfac"})
    page = check(scores._repr_html_(), "2 queries, 20 examples each", "score (ekfac)", "|14|")
    assert page.text.count("onerror") == 1 + 2 * 5
    check(scores.top(3, "negative")._repr_html_(), "|-5|")
    check(Scores(np.array([1]), ids, np.full((1, 20), np.nan))._repr_html_(), "nan")
    ranking = Ranking(ids, np.arange(20.0))
    check(ranking._repr_html_(), "20 examples", f"{ODD}19".replace("\x1b", "\\x1b"), "|19|")
    check(Ranking(ids[:0], values[0, :0])._repr_html_(), "no examples")


@pytest.mark.parametrize("length", [200, 10_000])
def test_long_texts_are_broken_and_very_long_ones_cut(length):
    """Wherever such a text is: a browser can break it, and the table stays small."""
    name = "n" * length
    scores = Scores(np.array([name]), np.array([name]), np.ones((1, 1)), about={"curvature": name})
    block = Block(name, (name,), (4, 9), "right", (2, 2))
    report = Report((block,), "float32", ((name, name),))
    tables = (
        scores._repr_html_(),
        Ranking(np.array([name]), np.ones(1))._repr_html_(),
        report._repr_html_(),
        html_table(name, [name], [[name]], whole=(0,), note=name),
    )
    for table in tables:
        check(table, "n" * 190)
        for piece in re.findall(r"<(?:t[dh]|p|caption) [^>]*>[^<]{61,}<", table):
            assert "overflow-wrap:anywhere" in piece
            assert "nowrap" not in piece
            assert len(piece) < 800


def test_the_report_of_watched_layers():
    block = Block(ODD, (ODD, "bias"), (4, 9), "right", (2, 2))
    report = Report((block,), "float32", ((ODD, "no rule"),))
    check(report._repr_html_(), "1 watched layer", "4 x 9", "2 x 2", "Not watched", "(no rule)")


def test_token_tables_show_themselves():
    table = token_table(np.array([[[3.0, -1.0]]]), [["<b>good ", "bad"]])
    html = table._repr_mimebundle_([], [])["text/html"]
    assert "<b>" not in html
    assert "&lt;b&gt;good" in html
    assert "background-color" in html


def test_tables_escape_everything_but_markup():
    text = html_table(ODD, [ODD], [[ODD], [Markup("<span></span>")]], note=ODD)
    page = check(text)
    assert page.text.count("onerror") == 4
    assert "span" in page.tags
    assert escaped("a\nb") == "a\nb"


@pytest.mark.skipif("jax" in LEFT_OUT, reason="jax is left out")
def test_names_that_cannot_be_seen_are_quoted():
    from sawlog import logdict
    from sawlog.jax._logdict.display import line

    logs = logdict({"  ": 1.0, "\x1b[31mred": 2.0})
    for text in (repr(logs), logs._repr_html_(), line(logs)):
        assert "\x1b" not in text
        assert "\\x1b[31mred" in text
        assert '"  "' in text.replace("&quot;", '"')
    scores = Scores(np.array([""]), np.array([" ", "b"]), np.array([[2.0, 1.0]]))
    assert {"&quot;&quot;", "&quot; &quot;"} <= set(
        scores._repr_html_().replace("<", ">").split(">")
    )
    assert "overflow-wrap" not in scores._repr_html_()
    assert "overflow-wrap" in logdict({"x" * 300: 1.0})._repr_html_()
    assert "&quot; &quot;" in Ranking(np.array([" "]), np.array([1.0]), {})._repr_html_()

"""Figures: any text is drawn as it is, and a file appears whole or not at all."""

import numpy as np
import pytest

import sawlog
from sawlog._atomic import replacing
from sawlog._figures import label, new_figure, save
from sawlog.errors import ArgumentError
from sawlog.influence import Scores

TEXTS = ["costs $5", "$x_{ and y$", r"\frac{$}", "a$$b", "\x1b[31mred", "$\\nothing$", r"a\$b"]


def drawn(text):
    """Return a text as matplotlib draws it, without its own reading of dollars."""
    from matplotlib.text import Text

    return Text()._preprocess_math(label(text))


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_drawn_as_it_is(text):
    shown, is_math = drawn(text)
    assert (shown, is_math) == (text.replace("\x1b", "\\x1b"), False)


@pytest.mark.parametrize("text", TEXTS)
def test_plots_draw_names_and_ids_of_any_text(tmp_path, text):
    values = np.array([[1.0, -2.0]])
    Scores(np.array([text]), np.array([text, "b"]), values).plot(path=tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 1000


def test_a_name_of_any_text_is_a_title(tmp_path):
    import jax.numpy as jnp
    from jax import lax

    def step(total, x):
        sawlog.log({TEXTS[1]: x}, **{"$x": x})
        return total, None

    _, logs = sawlog.spool(lambda xs: lax.scan(step, 0.0, xs))(jnp.arange(3.0))
    figure = logs.plot(path=tmp_path / "logs.svg")
    assert figure.axes[0].get_title() == label(TEXTS[1])
    assert (tmp_path / "logs.svg").read_bytes().startswith(b"<?xml")


def test_a_figure_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    figure = new_figure(2, 2, "a test")
    save(figure, tmp_path / "made" / "one")
    assert [each.name for each in (tmp_path / "made").iterdir()] == ["one.png"]
    old = (tmp_path / "made" / "one.png").read_bytes()

    def fails(place, **_):
        place.write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(figure, "savefig", fails)
    with pytest.raises(OSError, match="full"):
        save(figure, tmp_path / "made" / "one.png")
    assert [each.name for each in (tmp_path / "made").iterdir()] == ["one.png"]
    assert (tmp_path / "made" / "one.png").read_bytes() == old


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"`path` must be a file that ends with one of .*\.png"):
        save(new_figure(2, 2, "a test"), tmp_path / "a.txt")
    assert list(tmp_path.iterdir()) == []


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "none" / "a.txt"):
        pass
    assert raised.value.filename == str(tmp_path / "none" / "a.txt")

"""Odd names and values on a page in a real browser; see test_browser.py."""

import os

import numpy as np
import pytest

import sawlog.store
from sawlog.example_data import describe, load_examples
from sawlog.influence import Ranking, Scores
from sawlog.report import write_report
from sawlog.report._attribution import ScoredRun
from sawlog.run_files._blocks import Block, Report
from tests.report.pages import eventually, show

pytestmark = pytest.mark.skipif(
    os.environ.get("SAWLOG_BROWSER") != "1", reason="make test-browser runs these"
)


def test_names_that_cannot_be_seen_are_quoted(opened, tmp_path):
    """Blank and invisible names are visible, and names of JavaScript's objects are only names."""
    odd = {"   ": '"   "', "a\nb\tc": "a\\nb\\tc", "\u2028x\U000e0041": "\\u2028x\\u{e0041}"}
    config = {"constructor": "one", "toString": 2}
    with sawlog.store.create(tmp_path / "runs" / "a", meta={"config": config}) as writer:
        writer.extend({name: np.arange(3.0) for name in odd}, first=np.arange(3))
    with sawlog.store.create(tmp_path / "runs" / "b", meta={"config": {"lr": 1}}) as writer:
        writer.extend({"   ": np.arange(3.0)}, second=np.arange(3))
    describe(tmp_path / "runs" / "a", {"other": {"text": "text"}})
    scores = Scores(np.array([" q"]), np.array(["toString", ""]), np.array([[2.0, 1.0]]))
    scored = ScoredRun("names", scores, load_examples(tmp_path / "runs" / "a"))
    write_report([tmp_path / "runs"], tmp_path / "page.html", scores=[scored])
    page = opened((tmp_path / "page.html").as_uri())
    page.get_by_role("button", name="Choose all").click()
    settings = page.get_by_role("region", name="Settings").locator("tbody tr")
    settings.first.wait_for()
    expected = [["constructor", "one", ""], ["toString", "2", ""], ["lr", "", "1"]]
    rows = [row.split("\t") for row in settings.all_inner_texts()]
    assert sorted(rows) == sorted(expected)
    show(page, "curves")
    page.wait_for_selector("#panel .main-svg")
    captions = page.locator("#panel figcaption > span").all_text_contents()
    assert sorted(captions) == sorted(odd.values())
    eventually(page, lambda: page.text_content("#panel .xtitle"), "first or second")
    show(page, "attribution")
    assert page.locator("#panel h2 code").text_content() == '" q"'
    assert page.locator("#panel .ranking code.id").all_text_contents() == ["toString", '""']
    assert page.inner_text("#panel .ranking").count("not described") == 2


def test_runs_without_a_choice_show_the_settings_that_they_share(opened, tmp_path):
    """Equal settings are shown, and runs of different kinds are not said to be set alike."""
    for seed in range(2):
        config = {"lr": 0.05, "layers": [8, 8]}
        with sawlog.store.create(tmp_path / "runs" / f"{seed}", meta={"config": config}) as writer:
            writer.log({"loss": 1.0}, step=0)
    write_report([tmp_path / "runs"], tmp_path / "page.html")
    page = opened((tmp_path / "page.html").as_uri())
    page.wait_for_selector("text=2 settings that all of them share")
    assert "Their settings are the same." in page.inner_text("#panel")
    shared = page.get_by_role("region", name="Shared settings").locator("tbody tr")
    assert shared.all_inner_texts() == ["lr\t0.05", "layers\t8, 8"]
    with sawlog.store.create(tmp_path / "runs" / "other", meta={"config": {"n": 1}}) as writer:
        writer.log({"loss": 1.0}, step=0)
    write_report([tmp_path / "runs"], tmp_path / "more.html")
    page = opened((tmp_path / "more.html").as_uri())
    page.wait_for_selector("text=No setting that several of them have differs.")
    assert "Their settings are the same." not in page.inner_text("#panel")
    assert "that all of them share" not in page.inner_text("#panel")


def test_ids_fit_their_places(opened, tmp_path):
    """A short id stays on one line on a phone, and a long one is shortened in a chart."""
    ids = ["12", "long-" + "x" * 60]
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.log({"loss": 1.0}, step=0)
    scores = Scores(np.array(["q"]), np.array(ids), np.array([[2.0, -1.0]]))
    scored = ScoredRun("ids", scores, load_examples(tmp_path / "run"))
    write_report([tmp_path / "run"], tmp_path / "page.html", scores=[scored])
    page = opened((tmp_path / "page.html").as_uri() + "#attribution", width=390)
    page.wait_for_selector("#panel .main-svg")
    marks = page.locator("#panel .annotation-text").all_text_contents()
    assert sorted(marks) == ["1st: 12", "last: long-" + "x" * 14 + "…"]
    space = page.locator("#panel code.id").evaluate_all(
        "all => all.map(each => getComputedStyle(each).whiteSpace)"
    )
    assert "nowrap" in space
    assert page.locator("#panel code.id", has_text="12").bounding_box()["height"] < 30


def test_values_that_are_not_finite_have_no_least_and_greatest(opened, tmp_path):
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"loss": np.full(3, np.nan)}, step=np.arange(3))
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = opened((tmp_path / "page.html").as_uri() + "#curves")
    page.locator("#panel figure summary").click()
    row = page.locator("#panel figure tbody tr").inner_text().split("\t")
    assert [cell.strip() for cell in row] == ["run", "NaN", "none", "none", "3"]


def test_what_stopped_a_run_is_shown_as_text(opened, tmp_path):
    own = sawlog.store.create(tmp_path / "run")
    own.fail(ValueError("<img src=x onerror='window.pwned=1'> at step 7"))
    own.close()
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = opened((tmp_path / "page.html").as_uri())
    page.wait_for_selector("text=Its last words: ValueError: <img src=x onerror='window.pwned=1'>")


def test_tables_of_notebooks_fit_the_width_of_a_cell(opened, tmp_path):
    """Names of 200 characters without a blank are broken; nothing is wider than the cell."""
    from sawlog import logdict

    name = "k" * 200
    scores = Scores(np.array([name]), np.array([name, "b"]), np.ones((1, 2)))
    tables = [
        logdict({name: np.arange(30.0), "w": np.ones(3)}, step={name: np.arange(30)}),
        logdict({"loss": np.arange(30.0)}, **{name: {"loss": np.arange(30)}}),
        scores,
        Ranking(np.array([name, "b"]), np.ones(2)),
        Report((Block(name, (name,), (4, 9), "right", (2, 2)),), "float32", ((name, name),)),
    ]
    cells = "".join(f"<div class=cell>{table._repr_html_()}</div>" for table in tables)
    page = tmp_path / "page.html"
    page.write_text(f"<style>.cell {{ width: 900px }}</style><div id=panel>{cells}</div>")
    widths = opened(page.as_uri()).evaluate(
        "[...document.querySelectorAll('.cell')].map(each => each.scrollWidth)"
    )
    assert widths == [900] * len(tables)


def test_very_long_names_are_cut_in_the_middle(opened, tmp_path):
    """They do not fill the page; searching finds all of a name, and data is whole."""
    name, text = "a" * 2000 + "middle" + "z" * 2000, "column" * 100
    for run in ("one", "two"):
        with sawlog.store.create(tmp_path / run, meta={"config": {name: run}}) as writer:
            writer.extend({name: np.arange(3.0), "loss": np.arange(3.0)}, step=np.arange(3))
    describe(tmp_path / "one", {name: {"column": text}})
    scores = Scores(np.array(["q"]), np.array([name]), np.array([[2.0]]))
    scored = ScoredRun("names", scores, load_examples(tmp_path / "one"))
    write_report([tmp_path], tmp_path / "page.html", scores=[scored])
    page = opened((tmp_path / "page.html").as_uri(), width=390)
    page.wait_for_selector("#panel h2:has-text('Comparison')")
    cut = "a" * 100 + "…" + "z" * 59
    assert page.inner_text("#panel").count(cut) == 3  # a column, a setting, a series
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    show(page, "curves")
    page.wait_for_selector("#panel .main-svg")
    assert cut in page.locator("#panel figcaption > span").all_text_contents()
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    page.get_by_label("Names").fill("middle")
    eventually(page, lambda: page.locator("#panel figcaption > span").all_text_contents(), [cut])
    show(page, "attribution")
    row = page.locator("#panel .ranking li")
    assert row.locator("code.id").text_content() == cut
    assert row.locator("code.id").get_attribute("title") == name
    assert text in row.inner_text()

"""The page in a real browser: every view opened, every control used, hostile names shown as text.

``make test-browser`` installs what this needs and runs it; without ``SAWLOG_BROWSER=1`` it is left
out, because a browser is large and slow to start.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import sawlog.store
from sawlog.example_data import describe, load_examples
from sawlog.influence import Scores
from sawlog.report import PageOptions, write_report
from sawlog.report._attribution import ScoredRun
from sawlog.report._server import served
from tests.report.pages import eventually, show, until
from tests.report.runs import ESCAPES, HOSTILE, make_capture, make_failed, make_hostile, make_seeds

pytestmark = pytest.mark.skipif(
    os.environ.get("SAWLOG_BROWSER") != "1", reason="make test-browser runs these"
)

VIEWS = ("runs", "curves", "arrays", "store", "attribution", "labels")
BUTTONS = {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}
SHAPES = {"light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 390)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    make_seeds(folder / "runs", seeds=6, steps=1500)
    make_failed(folder / "runs")
    make_hostile(folder / "runs")
    make_capture(folder / "capture")
    write_report([folder], folder / "report.html", options=PageOptions(HOSTILE, points=100))
    return folder


def report(root):
    return (root / "report.html").as_uri()


def serious(page):
    import axe_playwright_python

    page.evaluate(next(Path(axe_playwright_python.__file__).parent.rglob("axe*.js")).read_text())
    return page.evaluate(
        """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
        .filter((each) => ["serious", "critical"].includes(each.impact))
        .map((each) => [each.id, each.nodes.map((node) => node.html.slice(0, 200))]))"""
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_every_view_is_accessible_and_fits_its_screen(root, opened, shape, monkeypatch):
    page = opened(report(root), *SHAPES[shape])
    names = [tab.get_attribute("id") for tab in page.query_selector_all("[role=tab]")]
    assert names == [f"tab-{view}" for view in VIEWS]
    for view in VIEWS:
        show(page, view)
        if view != "runs":
            page.wait_for_selector("#panel .main-svg")
        assert serious(page) == [], view
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    folder = os.environ.get("SAWLOG_SCREENSHOTS")
    for view in VIEWS if folder else ():
        show(page, view)
        page.wait_for_timeout(300)
        page.screenshot(path=f"{folder}/{view}-{shape}.png", full_page=True)


def test_hostile_names_are_text(root, opened):
    page = opened(report(root))
    assert page.text_content("h1") == HOSTILE == page.title()
    assert page.locator("main img[src=x], main script").count() == 0
    page.get_by_label("Compare runs/<b>bold<b>").check()
    page.wait_for_selector("#panel h2:has-text('Configuration')")
    text = page.inner_text("#panel")
    assert HOSTILE in text
    assert "\\u001b[31mred\\u202egnp.exe %{y} {{7*7}} &lt;b&gt;" in text
    show(page, "curves")
    page.wait_for_selector("#panel .main-svg")
    assert HOSTILE in page.text_content("#panel figcaption")
    assert page.text_content("#panel .xtitle") == "<i>step"
    show(page, "attribution")
    assert HOSTILE in page.inner_text("#panel h2 code")
    assert "<script>" in page.inner_text("#panel .ranking >> nth=0")
    assert "\x1b" in ESCAPES


def test_runs_are_searched_sorted_and_compared(root, opened):
    page = opened(report(root))
    names = lambda: page.locator("#panel table >> nth=0").locator("tbody th").all_inner_texts()
    assert len(names()) == 10
    page.get_by_label("Search runs").fill("seed")
    assert names() == [f"runs/seed-{i}" for i in range(6)]
    page.get_by_role("button", name="run", exact=True).click()
    page.get_by_role("button", name="run", exact=True).click()
    assert names() == [f"runs/seed-{i}" for i in reversed(range(6))]
    for seed in (0, 1):
        page.get_by_label(f"Compare runs/seed-{seed}", exact=True).check()
    page.wait_for_selector("text=Last values")
    rows = page.get_by_role("region", name="Settings").locator("tbody tr").all_inner_texts()
    assert [row for row in rows if row.startswith("lr")] == ["lr\t0.1\t0.2"]
    assert "2 runs chosen" in page.inner_text("#panel")
    show(page, "curves")
    said = page.inner_text("#panel [role=status]")
    assert "of 2 runs." in said
    assert "thinned to 100 points" in said
    assert "up to 1,500 entries" in said
    assert "the band their range" in said
    show(page, "runs")
    page.get_by_role("button", name="Choose none").click()
    page.get_by_role("button", name="Choose all").click()
    assert "10 runs chosen" in page.inner_text("#panel")
    assert "loss was NaN or infinite 20 times, first at step 40." in page.inner_text("#panel")


def test_curves_and_their_controls(root, opened):
    page = opened(report(root))
    show(page, "curves")
    page.get_by_label("Names").fill("loss")
    page.wait_for_selector("#panel figure:has-text('loss') .main-svg")
    figure = page.locator("#panel figure.chart").filter(has_text="NaN or infinite")
    lines = lambda: figure.locator(".scatterlayer .trace").count()
    data = lambda: figure.locator(".plot").evaluate(
        "plot => plot.data.filter(t => t.hovertemplate).map(t => [t.name, t.y.length])"
    )
    assert [name for name, _ in data()] == ["runs (7)"]
    page.get_by_label("Show").select_option("runs")
    until(page, "document.querySelectorAll('#panel .scatterlayer .trace').length > 6")
    eventually(page, lines, 7)
    assert len(data()) == 7
    assert {size for _, size in data()} == {100, 60}
    page.get_by_role("button", name="runs/diverged").click()
    until(page, "document.querySelectorAll('#panel .key[aria-pressed=false]').length === 1")
    until(
        page,
        "![...document.querySelectorAll('#panel .plot')].some(p => (p.data || []).some("
        "t => t.name === 'runs/diverged'))",
    )
    assert [name for name, _ in data()] == [f"runs/seed-{i}" for i in range(6)]
    page.get_by_role("button", name="runs/diverged").click()
    width = lambda: figure.bounding_box()["width"]
    small = width()
    figure.get_by_role("button", name="Enlarge loss").click()
    assert width() > 2 * small
    figure.get_by_role("button", name="Enlarge loss").click()
    page.get_by_label("Show").select_option("groups")
    page.get_by_label("Spread").select_option("range")
    page.get_by_label("Over").select_option("=epoch")
    until(page, "document.querySelector('#panel .xtitle')?.textContent === 'epoch'")
    page.get_by_label("Over").select_option("auto")
    layout = lambda: figure.locator(".plot").evaluate(
        "p => [p._fullLayout.xaxis.type, p._fullLayout.yaxis.type, p._fullLayout.xaxis.range]"
    )
    page.get_by_label("Log values").check()
    page.get_by_label("From step").fill("100")
    page.get_by_label("To step").fill("200")
    page.get_by_label("To step").press("Enter")
    eventually(page, layout, ["linear", "log", [100, 200]])
    page.get_by_label("Log steps").check()
    ends = [pytest.approx(2), pytest.approx(np.log10(200))]
    eventually(page, layout, ["log", "log", ends])
    page.get_by_label("Smoothing").fill("0.9")
    figure.locator("summary").click()
    assert "runs/diverged" in figure.locator("tbody").inner_text()
    page.get_by_label("Names").fill("no such name")
    page.wait_for_selector("#panel >> text=No name matches.")


@pytest.mark.parametrize("touch", [False, True])
def test_charts_offer_nothing_that_leaves_the_page(root, opened, touch):
    """Plotly has a button that uploads a chart; known buttons are shown, and none on a phone."""
    page = opened(report(root), "light", 390 if touch else 1280, touch)
    script = "[...document.querySelectorAll('#panel .modebar-btn')].map((x) => x.dataset.title)"
    for view in VIEWS[1:]:
        show(page, view)
        page.wait_for_selector("#panel .main-svg")
        assert set(page.evaluate(script)) == (set() if touch else BUTTONS), view


def test_arrays_stores_and_labels(root, opened, tmp_path):
    page = opened(report(root))
    show(page, "arrays")
    page.get_by_label("Run", exact=True).select_option(label="runs/seed-1")
    page.get_by_label("Array", exact=True).select_option("attention")
    page.wait_for_selector("#panel .pictures img")
    assert page.locator("#panel .pictures img").count() == 9
    page.get_by_label("Entry").fill("0")
    assert "At step 0" in page.inner_text("#panel")
    show(page, "store")
    assert "100 % of the parameters: 68 of 68" in page.inner_text("#panel")
    page.wait_for_selector("#panel .main-svg")
    page.get_by_label("Run", exact=True).select_option(label="runs/seed-0")
    page.wait_for_selector("text=Stores")
    show(page, "labels")
    page.wait_for_selector("#panel .main-svg")
    assert page.locator("#panel tbody tr").count() == 20
    page.get_by_role("button", name="Next").click()
    assert "Page 2 of 3" in page.inner_text("#panel .pager")
    page.get_by_label("Share to drop, in %").fill("10")
    with page.expect_download() as kept:
        page.get_by_role("button", name="Save ids to keep").click()
    kept.value.save_as(tmp_path / "keep.json")
    assert len(json.loads((tmp_path / "keep.json").read_text())) == 54


def test_attribution_and_its_controls(root, opened, tmp_path):
    page = opened(report(root))
    show(page, "attribution")
    scores = sawlog.influence.load_scores(root / "capture" / "train" / "scores" / "asked")
    best = int(scores.ids[np.argmax(scores.values[0])])
    assert page.inner_text("#panel .ranking code.id >> nth=0") == str(best)
    change = float(scores.values[0].max()) / 60
    told = page.inner_text("#panel .ranking .score .muted >> nth=0")
    assert float(told.removeprefix("predicted without it: loss ")) == pytest.approx(
        change, rel=1e-3
    )
    assert "not validated" in page.inner_text(".trust")
    assert page.locator("#panel summary:has-text('folded')").count() > 0
    page.get_by_label("Fold near-duplicates").uncheck()
    assert page.locator("#panel summary:has-text('folded')").count() == 0
    page.get_by_label("List").select_option("5")
    assert page.locator("#panel .ranking >> nth=0").locator("> li").count() == 5
    page.get_by_label("Beside it").select_option("1")
    assert page.locator("#panel section.query").count() == 2
    page.get_by_label("Query", exact=True).select_option("2")
    page.get_by_label("Column").first.select_option("source")
    groups = page.get_by_role("region", name="Groups by source").first
    assert sorted(row.split("\t")[0] for row in groups.locator("tbody tr").all_inner_texts()) == (
        sorted(["web", "books", HOSTILE])
    )
    page.locator("summary:has-text('BM25')").first.click()
    page.get_by_label("Share to drop, in %").fill("50")
    with page.expect_download() as dropped:
        page.get_by_role("button", name="Save ids to drop").click()
    dropped.value.save_as(tmp_path / "drop.json")
    total = scores.values.sum(0)
    expected = scores.ids[np.argsort(total, kind="stable")[:30]]
    assert set(json.loads((tmp_path / "drop.json").read_text())) == set(expected.tolist())
    with page.expect_download() as sheet:
        page.get_by_role("button", name="Save all as CSV").click()
    sheet.value.save_as(tmp_path / "scores.csv")
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 61


def test_the_shares_of_layers_have_the_colours_of_their_names(root, opened):
    page = opened(report(root))
    show(page, "attribution")
    row = page.locator("#panel .ranked .layers").first
    named = row.locator(".layer").all()
    assert {each.inner_text().split(" ")[0] for each in named} == {"0.weight", "2.weight"}
    colours = [each.locator(".dot").get_attribute("class").split()[1] for each in named]
    assert sorted(colours) == ["c0", "c1"]
    pieces = row.locator(".shares span")
    assert colours == [each.get_attribute("class") for each in pieces.all()]


def test_entries_of_one_step_are_one_point_of_a_chart(opened, tmp_path):
    config = {"layers": ["kfac", 3], "none": []}
    with sawlog.store.create(tmp_path / "run", meta={"config": config}) as writer:
        writer.extend({"loss": np.arange(12.0)}, update=np.repeat([0, 1, 2], 4))
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = opened((tmp_path / "page.html").as_uri())
    rows = page.get_by_role("region", name="Settings").locator("tbody tr").all_inner_texts()
    assert rows == ["layers\tkfac, 3", "none\tnone"]
    show(page, "curves")
    page.wait_for_selector("#panel .main-svg")
    said = "Where a step has several entries, a point is their mean, and the band their range."
    assert said in page.inner_text("#panel [role=status]")
    drawn = page.locator("#panel .plot").evaluate(
        "plot => [plot.data.at(-1).x, plot.data.at(-1).y]"
    )
    assert [list(each.values()) if isinstance(each, dict) else each for each in drawn] == [
        [0, 1, 2],
        [1.5, 5.5, 9.5],
    ]


def test_tokens_are_shaded_by_their_scores(opened, tmp_path):
    run = tmp_path / "train"
    tokens = ["a ", "<b> ", "c"]
    describe(run, {1: {"text": "".join(tokens), "tokens": tokens}})
    with sawlog.store.create(run / "metrics") as writer:
        writer.log({"loss": 1.0}, step=0)
    about = {"mode": "dot", "curvature": "ekfac", "examples": 1}
    scores = Scores(np.array(["q"]), np.array([1]), np.array([[2.1]]), about=about)
    said = {"q": {1: [0.1, 4.0, -2.0]}}
    scored = ScoredRun("tokens", scores, load_examples(run), tokens=said)
    write_report([run], tmp_path / "page.html", scores=[scored])
    page = opened((tmp_path / "page.html").as_uri())
    show(page, "attribution")
    found = page.locator("#panel .tokens .token").evaluate_all(
        "all => all.map(each => [each.textContent, each.className, each.title])"
    )
    kinds = ["token", "token helps level-4", "token hurts level-2"]
    titles = ["score 0.1", "score 4", "score -2"]
    assert found == [list(each) for each in zip(tokens, kinds, titles, strict=True)]


def test_the_keyboard_and_the_theme(root, opened):
    page = opened(report(root))
    page.focus("#tab-runs")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-curves"
    page.keyboard.press("End")
    assert page.evaluate("location.hash") == "#labels"
    page.keyboard.press("Home")
    paper = lambda: page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    light = paper()
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Theme").click()
    assert page.inner_text("#theme") == "Theme: dark"
    assert paper() != light
    again = opened(report(root) + "#store")
    assert again.get_attribute("#tab-store", "aria-selected") == "true"


def test_the_live_page_follows_a_run(tmp_path, opened):
    with (
        sawlog.store.create(tmp_path / "live", interval=None) as writer,
        served(tmp_path) as address,
    ):
        writer.log({"loss": 2.0}, step=0)
        writer.flush()
        page = opened(address)
        page.wait_for_selector("text=writing")
        show(page, "curves")
        page.wait_for_selector("#panel .main-svg")
        length = "document.querySelector('#panel .plot')?.data?.at(-1).y.length === {}"
        until(page, length.format(1))
        page.get_by_label("Show").focus()  # a control that has the focus does not stop updates
        page.evaluate("document.querySelector('#panel .plot').mark = 1")
        writer.log({"loss": 1.0}, step=1)
        writer.flush()
        until(page, length.format(2))
        assert page.evaluate("document.activeElement.tagName") == "SELECT"
        seen = "document.querySelector('#panel .plot')._fullLayout.xaxis.range.join()"
        first = page.evaluate(seen)
        area = page.locator("#panel .nsewdrag").bounding_box()
        page.mouse.move(area["x"] + 20, area["y"] + 20)
        page.mouse.down()
        page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2, steps=5)
        page.mouse.up()
        until(page, f"{seen} !== {json.dumps(first)}")
        zoomed = page.evaluate(seen)
        writer.log({"loss": 0.5}, step=20)
        writer.flush()
        until(page, length.format(3))
        assert page.evaluate(seen) == zoomed
        assert page.evaluate("document.querySelector('#panel .plot').mark") == 1
        show(page, "runs")
        page.get_by_role("button", name="state", exact=True).click()  # has the focus from now on
        with sawlog.store.create(tmp_path / "second") as other:
            other.log({"loss": 5.0}, step=0)
        page.wait_for_selector("#panel th:has-text('second')")
        assert page.evaluate("document.activeElement.textContent") == "state"
        assert serious(page) == []
        page.close()  # before the server: the page would complain that it is gone

"""What a page packs, ranks and picks, piece by piece."""

import base64
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sawlog.store
from sawlog.curvature import Curvature, Diagonal
from sawlog.errors import DamagedStoreError
from sawlog.example_data import Example
from sawlog.influence import Ranking, Scores
from sawlog.report import _attribution, _label_part, _live_source, _series_parts
from sawlog.report._bm25 import bm25
from sawlog.report._encode import (
    MOST_TEXT,
    exact,
    example_json,
    histogram,
    packed,
    packed_values,
)
from sawlog.report._source import PageOptions, PageSource


@pytest.mark.parametrize("last", [2.0 + 1e-12, 2.0 - 1e-9, 2.5])
def test_numbers_that_are_almost_even_are_not_packed_as_even(last):
    assert "by" in packed([0.0, 1.0, 2.0])
    assert "by" not in packed([0.0, 1.0, last])


@pytest.mark.parametrize(
    ("text", "cut", "says"),
    [("a", False, False), ("a", True, True), ("a" * (MOST_TEXT + 1), False, True)],
)
def test_a_text_says_that_it_was_cut(text, cut, says):
    said = example_json(Example(text=text, cut=cut))
    assert said["text"] == text[:MOST_TEXT]
    assert ("cut" in said) is says


def test_equal_texts_are_in_the_order_in_which_they_came():
    texts = [(4, "a cat"), (9, "a cat"), (2, "a dog"), (1, "a cat")]
    found = bm25({"q": "cat"}, texts, top=2)["q"]
    assert [each for each, _ in found] == [4, 9]
    assert found[0][1] == found[1][1] > 0


def test_a_histogram_of_one_value():
    said = histogram([2.0, 2.0, np.inf], bins=4)
    assert (said["low"], sum(said["counts"]), said["nonfinite"]) == (2.0, 2, 1)
    assert said["high"] > said["low"]


def saved(monkeypatch, found):
    """Let curvatures be saved for the rows "r": by kind the layers, or an error."""
    folder = Path("run") / "curvature"
    paths = [folder / "r" / kind for kind in found] + [folder / "other" / "ekfac"]
    monkeypatch.setattr(_label_part, "stores_under", lambda path: paths if path == folder else [])
    monkeypatch.setattr(_label_part, "measured_with", lambda reader: None)

    def load(path):
        assert path.parent.name == "r"
        if isinstance(found[path.name], Exception):
            raise found[path.name]
        layers = {name: Diagonal(np.ones(2)) for name in found[path.name]}
        return Curvature(path.name, layers)

    monkeypatch.setattr(_label_part.curvature, "load", load)
    logs, reader = SimpleNamespace(layers=["a", "b"]), SimpleNamespace(path=Path("run/logs/r"))
    return _label_part._chosen(logs, reader, fit=True)[0]


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({}, "identity"),
        ({"diagonal": "ab", "ekfac": "ab"}, "ekfac"),
        ({"diagonal": "ab", "ekfac": "a"}, "diagonal"),  # of other layers
        ({"diagonal": "abc"}, "diagonal"),
        ({"ekfac": DamagedStoreError("cut"), "kfac": "ab"}, "kfac"),
        ({"ekfac": "a"}, "identity"),
    ],
)
def test_a_saved_curvature_of_all_layers_is_picked(monkeypatch, found, kind):
    assert saved(monkeypatch, found) == kind


def test_a_long_ranking_is_listed_in_part(monkeypatch):
    monkeypatch.setattr(_label_part, "LISTED", 2)
    ranking = Ranking(np.array([7, 5, 9, 1]), np.array([4.0, 3.0, 2.0, 1.0]))
    said = _label_part._said(ranking, "ekfac", None)
    assert said["rows"] == [{"id": 7, "score": 4.0}, {"id": 5, "score": 3.0}]
    assert (said["examples"], sum(said["histogram"]["counts"])) == (4, 4)
    assert said["overall"]["ids"] == [7, 5, 9, 1]


@pytest.mark.parametrize(("most", "left_out"), [(1, 2), (2, 1), (3, 0), (9, 0)])
def test_a_page_says_how_many_series_it_leaves_out(tmp_path, monkeypatch, most, left_out):
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.log({"a": 1.0, "b": 2.0, "c": 3.0, "array": np.ones(3)}, step=0)
    monkeypatch.setattr(_series_parts, "MOST_SERIES", most)
    part = _series_parts.curves_part(tmp_path / "run", 10)
    assert part["left_out"] == left_out
    assert [each["name"] for each in part["series"]] == ["a", "b", "c"][:most]


@pytest.mark.parametrize("notes", ["first", "last", "none"])
@pytest.mark.parametrize(("most", "left_out"), [(1, 3), (3, 1), (4, 0), (5, 0), (60, 0)])
def test_a_page_says_how_many_arrays_it_leaves_out(tmp_path, monkeypatch, most, left_out, notes):
    """Neither numbers, nor notes of a run, nor what has no histogram are arrays of a page."""
    monkeypatch.setattr(_series_parts, "MOST_ARRAYS", most)
    note = {"provenance": np.arange(16, dtype=np.uint8)}
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.log({**(note if notes == "first" else {}), "loss": 1.0}, step=0)
        writer.log({"wave": np.ones(3, np.complex64), "a": np.arange(3.0)}, step=0)
        writer.log({name: np.arange(3.0) for name in "bcd"}, step=0)
        writer.log(note if notes == "last" else {"loss": 0.0}, step=1)
    part = _series_parts.arrays_part(tmp_path / "run")
    names = [each["name"] for each in part["arrays"]]
    assert names == list("abcd")[: len(names)]
    assert len(names) == min(most, 4)
    assert part["left_out"] == left_out


@pytest.mark.parametrize(("most", "left_out"), [(1, 2), (2, 1), (3, 0), (9, 0)])
def test_a_page_says_how_many_queries_it_leaves_out(monkeypatch, most, left_out):
    monkeypatch.setattr(_attribution, "MOST_QUERIES", most)
    scores = Scores(np.array(["p", "q", "r"]), np.arange(4), np.arange(12.0).reshape(3, 4))
    part = _attribution.attribution_part(_attribution.ScoredRun("some", scores))
    assert [each["id"] for each in part["queries"]] == ["p", "q", "r"][:most]
    assert part["queries_left_out"] == left_out


@pytest.mark.parametrize(
    ("examples", "folded"),
    [
        ([("a", None), ("a", None), ("b", None)], {0: 0, 1: 0}),
        ([(None, b"x"), (None, b"y"), (None, b"x")], {0: 0, 2: 0}),
        ([("a", b"x"), ("a", b"y"), ("b", b"x"), ("b", b"x")], {2: 2, 3: 2}),
        ([("", None), (None, None), ("", b"")], {}),  # nothing is known of them
    ],
)
def test_examples_are_equal_if_texts_and_images_are(examples, folded):
    known = {n: Example(text=text, image=image) for n, (text, image) in enumerate(examples)}
    data = SimpleNamespace(get=lambda ids: {each: known[each] for each in ids})
    scores = Scores(np.array(["q"]), np.arange(len(known)), np.ones((1, len(known))))
    found = _attribution._duplicates(
        _attribution.ScoredRun("some", scores, data), [{0, 2}, {1, *known}]
    )
    assert {each: first for each, first in found.items() if each in folded} == folded
    assert len(set(found.values())) == len(found) - len(folded) + len(set(folded.values()))


@pytest.mark.parametrize(
    "groups",
    [[[1, 2], [3, 4], [4, 2]], [[1, 2], [3, 4], [2, 4]], [[4, 3], [2, 1], [1, 5], [5, 3]]],
)
def test_chains_of_duplicates_are_one_group(groups):
    found = _attribution._representatives(groups)
    members = {each for own in groups for each in own}
    assert found.keys() == members
    assert len(set(found.values())) == 1
    assert set(found.values()) <= members


@pytest.mark.parametrize("fit", [False, True])
def test_nothing_is_fitted_unless_asked(monkeypatch, fit):
    monkeypatch.setattr(_label_part, "measured_with", lambda reader: object())
    monkeypatch.setattr(_label_part, "stores_under", lambda path: [])
    logs, reader = SimpleNamespace(layers=["a"]), SimpleNamespace(path=Path("run/logs/r"))
    assert _label_part._chosen(logs, reader, fit)[0] == ("ekfac" if fit else "identity")


def rows_of(path, rows):
    with sawlog.store.create(path / "logs" / "whole-float32") as writer:
        writer.append(np.arange(len(rows)), {"grad/w": np.asarray(rows, np.float32)})
    return path / "logs" / "whole-float32"


def test_how_many_numbers_are_ranked(tmp_path, monkeypatch):
    """Examples times the numbers of each."""
    rows = rows_of(tmp_path, np.ones((4, 3, 2)))
    for most, ranked in ((24, True), (23, False)):
        monkeypatch.setattr(_label_part, "MOST_ELEMENTS", most)
        assert ("rows" in _label_part.label_part(rows, None, fit=False)) is ranked


def test_an_example_that_is_not_finite_is_ranked_last(tmp_path):
    rows = rows_of(tmp_path, [[[1.0]], [[np.nan]], [[3.0]]])
    said = _label_part.label_part(rows, None, fit=False)
    assert [each["id"] for each in said["rows"]] == [2, 0, 1]
    assert said["histogram"]["nonfinite"] == 1


def test_runs_of_one_name_are_other_runs(tmp_path):
    for folder in ("a", "b"):
        with sawlog.store.create(tmp_path / folder / "seed-0") as writer:
            writer.log({"x": 1.0}, step=0)
    source = PageSource([tmp_path])
    assert [run.name for run in source.runs.values()] == ["a/seed-0", "b/seed-0"]


@pytest.mark.parametrize(
    ("curves", "points"), [(0, 1000), (300, 1000), (301, 996), (1000, 300), (10**6, 100)]
)
def test_points_are_divided_among_curves(tmp_path, curves, points):
    with sawlog.store.create(tmp_path / "s") as writer:
        writer.log({"x": 1.0}, step=0)
    source = PageSource([tmp_path])
    stores = {"metrics": SimpleNamespace(names=curves), "logs/a": SimpleNamespace(names=10**7)}
    source.runs = {"r": SimpleNamespace(summary=SimpleNamespace(stores=stores))}
    assert source._points() == points


def test_parts_of_a_live_page_are_forgotten(tmp_path, monkeypatch):
    with sawlog.store.create(tmp_path / "s") as writer:
        writer.log({"x": 1.0}, step=0)
    monkeypatch.setattr(_live_source, "_KEPT", 2)
    source = _live_source.LiveSource(tmp_path, PageOptions(fit=False))
    (run,) = source.runs
    for kind in ("curves", "arrays", "store", "curves"):
        source.part(f"{kind}/{run}")
    assert list(source._made) == [f"store/{run}", f"curves/{run}"]


@pytest.mark.parametrize("values", [[1e-300, 1.0], [0.0, -np.inf], [np.nan, np.inf], [1e39, 1.0]])
def test_histograms_count_all_that_is_not_finite(values):
    said = histogram(values, bins=3)
    assert said["nonfinite"] == int((~np.isfinite(values)).sum())
    assert sum(said["counts"]) + said["nonfinite"] == len(values)


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**60, -(2**60)])
def test_integers_beyond_those_of_javascript_are_texts(number):
    assert exact({"a": [number, number // 256]}) == {"a": [str(number), number // 256]}
    assert exact(True) is True


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"damping": {"a": 0.3, "b": 0.1, "c": 0.2}}, {"damping": [0.1, 0.3]}),
        ({"damping": None}, {"damping": None, "same_weights": None, "weights": []}),
        (
            {"weights": {"train": ["w"], "queries": ["w"]}},
            {"same_weights": True, "weights": ["w"]},
        ),
        (
            {"weights": {"train": ["w", "v"], "queries": ["w"]}},
            {"same_weights": False, "weights": ["v", "w"]},
        ),
        ({"weights": {"train": [], "queries": []}}, {"same_weights": None}),
        ({"mode": "dot", "curvature": "ekfac"}, {"predicts": True}),
        ({"mode": "dot"}, {"predicts": False, "method": "unknown"}),
        ({"curvature": "ekfac"}, {"predicts": False, "mode": "unknown"}),
        ({"examples": 7}, {"examples": 7}),
    ],
)
def test_what_is_known_of_scores(about, said):
    scores = Scores(np.array(["q"]), np.arange(3), np.ones((1, 3)), about=about)
    found = _attribution.trust(_attribution.ScoredRun("some", scores))
    assert {name: found[name] for name in said} == said


@pytest.mark.parametrize(("mode", "sums"), [("dot", True), ("cosine", False), ("l2", False)])
def test_sums_are_those_of_dot_products(mode, sums):
    """A distance has no harmful side, and neither cosines nor distances are added up."""
    examples = {n: Example(text=f"t{n}", fields={"kind": "ab"[n % 2]}) for n in range(4)}
    data = SimpleNamespace(
        get=lambda ids: {each: examples[each] for each in ids}, batches=lambda: [examples]
    )
    values = np.array([[-4.0, -1.0, -3.0, -2.0], [2.0, -3.0, 0.0, 1.0]])
    scores = Scores(np.array(["p", "q"]), np.arange(4), values, about={"mode": mode})
    part = _attribution.attribution_part(_attribution.ScoredRun("some", scores, data))
    assert ("overall" in part) is sums
    assert all(("groups" in query) is sums for query in part["queries"])
    sides = [
        [[row["id"] for row in q[side]] for side in ("helpful", "harmful")] for q in part["queries"]
    ]
    if mode == "l2":
        assert sides == [[[1, 3, 2, 0], []], [[0, 3, 2, 1], []]]
    else:
        assert sides == [[[], [0, 2, 3, 1]], [[0, 3], [1]]]
    assert set(part["examples"]) == {"0", "1", "2", "3"}


def test_tables_of_a_store_and_of_rows_are_shown(tmp_path):
    """Of a plain store as of the rows of a run, and not of its scores."""
    with sawlog.store.create(tmp_path / "plain") as writer:
        writer.append([1, 2], {"x": np.ones((2, 3))})
    rows_of(tmp_path / "run", np.ones((4, 3)))
    for part in ("scores", "data"):
        with sawlog.store.create(tmp_path / "run" / part / "own") as writer:
            writer.append([1], {"x": np.ones(1)})
    source = PageSource([tmp_path])
    found = {
        run.name: [
            (each["store"], each["tables"][0]["rows"])
            for each in source.part(f"store/{run.id}")["tables"]
        ]
        for run in source.runs.values()
    }
    assert found == {"plain": [(".", 2)], "run": [("logs/whole-float32", 4)]}
    rows = {run["name"]: run["rows"] for run in source.part("index")["runs"]}
    assert rows == {"plain": 2, "run": 4}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.1, 1e38], "f4"),
        ([0.1, 1e39], "f8"),
        ([-1e300, 0.0], "f8"),
        ([np.nan, np.inf, -np.inf], "f4"),
        ([np.inf, 1e39], "f8"),
    ],
)
def test_measured_values_stay_finite(values, kind):
    (found,) = packed_values(values).items()
    back = np.frombuffer(base64.b64decode(found[1]), f"<{found[0]}")
    assert found[0] == kind
    np.testing.assert_allclose(back, values, rtol=1e-6)


def test_parts_that_there_are_not(tmp_path):
    with sawlog.store.create(tmp_path / "s") as writer:
        writer.log({"x": 1.0}, step=0)
    source = PageSource([tmp_path])
    (run,) = source.runs
    assert source.part(f"curves/{run}")["series"]
    for odd in (f"curves/{run}/0", f"attribution/{run}/0", f"odd/{run}", "curves/odd", "index/0"):
        with pytest.raises(KeyError):
            source.part(odd)


@pytest.mark.parametrize("values", [[0.0, np.inf, np.inf], [np.nan] * 3, [np.inf] * 4])
def test_what_is_not_finite_is_not_evenly_spaced(values):
    (found,) = packed(values).items()
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(found[1]), "<f4"), values)


@pytest.mark.parametrize(("points", "thinned"), [(2, True), (4, False)])
def test_a_thinned_curve_has_its_range(tmp_path, points, thinned):
    with sawlog.store.create(tmp_path / "s") as writer:
        writer.extend({"x": np.array([1.0, 3.0, 8.0, 2.0])}, step=np.arange(4))
    ((own,),) = [
        each["curves"] for each in _series_parts.curves_part(tmp_path / "s", points)["series"]
    ]
    assert ("least" in own, "greatest" in own) == (thinned, thinned)
    assert own["entries"] == 4

"""The parts of a page as data, each against values computed by hand."""

import base64
import dataclasses
import json

import numpy as np
import pytest

import sawlog.store
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.example_data import describe, load_examples
from sawlog.influence import Scores
from sawlog.inspect import find_runs, run_summary, series_curves
from sawlog.report import PageOptions, PageSource
from sawlog.report._attribution import ScoredRun, attribution_part
from sawlog.report._bm25 import bm25
from sawlog.report._encode import packed, packed_values, safe_json
from sawlog.report._groups import MOST_GROUPS, GroupBuilder, group_sums
from tests.report.runs import make_failed, make_hostile, make_seeds


def unpacked(said):
    if "n" in said:
        return said["from"] + said["by"] * np.arange(said["n"])
    kind = "f4" if "f4" in said else "f8"
    return np.frombuffer(base64.b64decode(said[kind]), f"<{kind}").astype(float)


@pytest.mark.parametrize(
    "values",
    [[0.0, 10.0, 20.0], [1.0, 2.0, 4.0], [0.1, 0.3], [], [7.0], [2.0**40 + 1, 0.5], [np.nan, 1.0]],
)
def test_packed_arrays_are_exact(values):
    assert np.array_equal(unpacked(packed(values)), np.array(values), equal_nan=True)


def test_packed_values_do_not_overflow():
    values = np.array([1e300, -np.inf, 1 / 3])
    assert np.array_equal(unpacked(packed_values(values)), values)
    assert "f4" in packed_values(values[1:])


def test_json_inside_a_page_cannot_end_it():
    text = safe_json({"</script>": "<!--\u2028&", "nan": float("nan")})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": "<!--\u2028&", "nan": "NaN"}


def test_integers_that_javascript_would_round_are_texts():
    scores = Scores(np.array([0]), np.array([2**60 + 1, 7]), np.array([[1.0, -1.0]]))
    part = attribution_part(ScoredRun("t", dataclasses.replace(scores, about={"mode": "dot"})))
    said = json.loads(safe_json(part))
    assert said["overall"]["ids"] == ["1152921504606846977", 7]
    assert said["overall"]["kind"] == "int"
    assert said["queries"][0]["helpful"][0]["id"] == "1152921504606846977"


def test_bm25_is_the_formula():
    texts = [("a", "x x y"), ("b", "y"), ("c", "z z z z")]
    rare = np.log(1 + (3 - 1 + 0.5) / 1.5)
    by_hand = rare * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / (8 / 3)))
    ((name, score),) = bm25({"q": "x"}, texts)["q"]
    assert (name, score) == ("a", pytest.approx(by_hand))
    assert [each for each, _ in bm25({"q": "Y z"}, texts)["q"]] == ["c", "b", "a"]


# -- curves ---------------------------------------------------------------------------------------


def test_curves_are_thinned_to_means_and_ranges(tmp_path):
    values, steps = np.arange(1000.0), np.arange(1000) * 2
    values[500] = np.inf
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"a": values}, step=steps)
    ((series),) = series_curves(tmp_path / "run", points=10)
    (curve,) = series.curves
    assert (curve.axis, curve.entries, curve.thinned) == ("step", 1000, True)
    assert (curve.nonfinite, curve.first_nonfinite) == (1, 1000.0)
    blocks = [block[np.isfinite(block)] for block in values.reshape(10, 100)]
    assert np.allclose(curve.mean, [block.mean() for block in blocks])
    assert curve.least.tolist() == [block.min() for block in blocks]
    assert curve.greatest.tolist() == [block.max() for block in blocks]
    assert curve.steps.tolist() == [200 * i + 98 for i in range(10)]


def test_curves_are_in_the_order_of_steps_and_without_masked_entries(tmp_path):
    from sawlog.records import Entries, Records

    mask = np.array([True, False, True])
    entries = Entries(np.array([3.0, 9.0, 1.0]), {"step": np.array([5, 1, 0])}, mask)
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.write(Records({"a": entries}))
        writer.log({"b": 4})
    a, b = series_curves(tmp_path / "run")
    assert (a.curves[0].steps.tolist(), a.curves[0].mean.tolist()) == ([0, 5], [1, 3])
    assert (a.last, a.last_steps) == (1.0, {"step": 0.0})
    assert (b.curves[0].axis, b.curves[0].mean.tolist()) == (None, [4.0])


def test_entries_of_one_step_are_one_point(tmp_path):
    values, steps = np.arange(12.0), np.repeat([7, 3, 5, 9], 3)
    values[4] = np.nan
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"loss": values}, update=steps)
    ((few,), (some,)) = (series_curves(tmp_path / "run", points=n)[0].curves for n in (2, 500))
    assert some.steps.tolist() == [3, 5, 7, 9]
    assert some.mean.tolist() == [4, 7, 1, 10]
    assert (some.least.tolist(), some.greatest.tolist()) == ([3, 6, 0, 9], [5, 8, 2, 11])
    assert (some.entries, some.distinct, some.thinned) == (12, 4, True)
    assert (some.nonfinite, some.first_nonfinite) == (1, 3.0)
    assert few.mean.tolist() == [(3 + 5 + 6 + 7 + 8) / 5, (0 + 1 + 2 + 9 + 10 + 11) / 6]
    assert (few.entries, few.distinct) == (12, 4)


def test_lanes_that_logged_are_entries_of_a_curve(tmp_path):
    """What the lanes of a ``vmap`` logged where a condition held is a series of numbers."""
    import jax
    import jax.numpy as jnp

    def program():
        def step(total, i):
            def lane(k):
                sawlog.log({"end": 10.0 * i + k}, where=(i + k) % 2 == 0, update=i)
                sawlog.log({"all": k * 1.0})
                sawlog.log({"array": jnp.arange(3.0)}, update=i)

            jax.vmap(lane)(jnp.arange(4))
            return total, None

        return jax.lax.scan(step, 0.0, jnp.arange(3))

    sawlog.save(tmp_path / "run", sawlog.spool(program)()[1])
    found = {each.name: each.curves[0] for each in series_curves(tmp_path / "run")}
    assert set(found) == {"end", "all"}
    assert found["end"].axis == "update"
    assert found["end"].steps.tolist() == [0, 1, 2]
    assert found["end"].mean.tolist() == [(0 + 2) / 2, (11 + 13) / 2, (20 + 22) / 2]
    assert found["end"].greatest.tolist() == [2, 13, 22]
    assert (found["end"].entries, found["all"].entries) == (6, 12)
    part = PageSource([tmp_path], PageOptions("lanes")).part
    (run,) = part("index")["runs"]
    assert [each["name"] for each in part(f"curves/{run['id']}")["series"]] == list(found)


def test_a_page_of_seeds(tmp_path):
    make_seeds(tmp_path, seeds=2, steps=40)
    make_failed(tmp_path)
    source = PageSource([tmp_path], PageOptions("seeds", points=20))
    index = source.part("index")
    runs = {run["name"]: run for run in index["runs"]}
    assert list(runs) == ["diverged", "seed-0", "seed-1"]
    assert runs["diverged"]["state"] == "failed"
    assert runs["seed-1"]["config"] == {"key": [0, 1], "lr": 0.2, "model.width": 32}
    part = source.part(f"curves/{runs['seed-0']['id']}")
    loss = next(each for each in part["series"] if each["name"] == "loss")
    assert [curve["axis"] for curve in loss["curves"]] == ["step", "epoch"]
    assert len(unpacked(loss["curves"][0]["mean"])) == 20
    failed = source.part(f"curves/{runs['diverged']['id']}")["series"][0]
    assert failed["curves"][0]["first_nonfinite"] == 40
    arrays = source.part(f"arrays/{runs['seed-0']['id']}")["arrays"]
    by_name = {each["name"]: each for each in arrays}
    assert set(by_name) == {"weights", "attention"}
    assert sum(by_name["weights"]["entries"][0]["counts"]) == 64
    assert by_name["attention"]["entries"][0]["image"].startswith("data:image/png;base64,")
    assert by_name["weights"]["entries"][0]["image"] is None
    with pytest.raises(KeyError):
        source.part("curves/none")
    for number in ("\u00b2", "\u0661", "-1", "00", "9" * 5_000):
        with pytest.raises(KeyError):
            source.part(f"attribution/{runs['seed-0']['id']}/{number}")
    for name in source.parts():
        assert safe_json(source.part(name))


def test_runs_are_found_and_parts_of_runs_are_not(tmp_path):
    make_seeds(tmp_path / "seeds", seeds=1, steps=20)
    Scores(np.array([0]), np.array([1]), np.ones((1, 1))).save(tmp_path / "saved")
    describe(tmp_path / "capture", ["a"])
    with sawlog.store.create(tmp_path / "capture" / "metrics") as writer:
        writer.log({"a": 1.0}, step=0)
    found = [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)]
    assert found == ["capture", "seeds/seed-0"]
    summary = run_summary(tmp_path / "capture")
    assert (summary.kind, sorted(summary.stores)) == ("capture", ["data", "metrics"])
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        PageSource([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreNotFoundError, match="There is no run"):
        PageSource([tmp_path / "empty"])


def test_a_damaged_run_is_shown_with_what_is_wrong(tmp_path):
    make_seeds(tmp_path, seeds=1, steps=20)
    for file in (tmp_path / "seed-0" / "segments").iterdir():
        file.write_bytes(b"not a segment")
    make_hostile(tmp_path)
    source = PageSource([tmp_path])
    (damaged,) = [run for run in source.part("index")["runs"] if run["state"] == "damaged"]
    assert damaged["problem"]
    series = source.part(f"curves/{damaged['id']}")["series"]
    assert [(each["name"], each["last"]) for each in series] == [("loss", None), ("accuracy", None)]


# -- attribution ----------------------------------------------------------------------------------


def scored(tmp_path, **about):
    """Five examples, two of the same text, and two queries."""
    texts = ["red cat", "red cat", "blue dog", "old bird", "blue cat"]
    columns = [{"text": t, "source": "ab"[i % 2], "i": i} for i, t in enumerate(texts)]
    describe(tmp_path / "train", dict(zip([10, 11, 12, 13, 14], columns, strict=True)))
    describe(tmp_path / "asked", {"q": "a red cat", "r": "birds"})
    values = np.array([[5.0, 4.0, -1.0, 0.0, 2.0], [0.0, -3.0, 1.0, 2.0, -4.0]])
    layers = {"one": values * 0.75, "two": values * 0.25}
    said = {"mode": "dot", "curvature": "ekfac", "damping": {"one": 0.1, "two": 0.3}} | about
    scores = Scores(np.array(["q", "r"]), np.arange(10, 15), values, layers, said)
    data, asked = load_examples(tmp_path / "train"), load_examples(tmp_path / "asked")
    return ScoredRun("t", scores, data, asked, None, 0.5)


def test_attribution_of_a_query(tmp_path):
    part = attribution_part(scored(tmp_path))
    first = part["queries"][0]
    assert [(row["id"], row["score"]) for row in first["helpful"]] == [(10, 5), (11, 4), (14, 2)]
    assert [(row["id"], row["score"]) for row in first["harmful"]] == [(12, -1)]
    assert first["helpful"][0]["layers"] == [3.75, 1.25]
    assert first["helpful"][0]["like"] == first["helpful"][1]["like"] == 10
    assert "like" not in first["helpful"][2]
    assert first["data"] == {"text": "a red cat"}
    assert {each for each, _ in first["lexical"][:2]} == {10, 11}
    assert sum(first["histogram"]["counts"]) == 5
    assert part["examples"]["12"] == {"text": "blue dog", "fields": {"source": "a", "i": 2}}
    # sources a, b, a, b, a; the column i has a value for each example, and five of them
    assert first["groups"]["source"] == [["a", 3, 6.0], ["b", 2, 4.0]]
    assert part["overall"]["ids"] == [10, 11, 12, 13, 14]
    assert unpacked(part["overall"]["values"]).tolist() == [5, 1, 0, 2, -2]


def test_queries_that_no_run_has_are_described_with_the_run(tmp_path):
    run = sawlog.init("train", root=tmp_path)
    run.log({"loss": 1.0}, step=0)
    run.finalize()
    assert run.describe({"q": "a red cat"}, queries=True) == 1
    assert run.describe({3: "a dog"}) == 1
    scores = Scores(np.array(["q", "r"]), np.array([3]), np.ones((2, 1)), about={"mode": "dot"})
    scores.save(run.path / "scores" / "asked")
    source = PageSource([tmp_path])
    (page,) = source.runs.values()
    part = source.part(f"attribution/{page.id}/0")
    assert [query.get("data") for query in part["queries"]] == [{"text": "a red cat"}, None]
    assert part["examples"] == {"3": {"text": "a dog"}}


def test_parallel_gradients_are_folded_in_every_list(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(32, 6))
    rows[1::2] = 3 * rows[::2]  # pairs
    with sawlog.store.create(tmp_path / "rows", interval=None) as writer:
        writer.append(np.arange(32), {"grad/w": rows})
    values = np.zeros((8, 32))
    for query in range(8):
        values[query, 4 * query : 4 * query + 4] = [4, 3, -2, -1]
    scores = Scores(np.arange(8), np.arange(32), values, about={"mode": "dot"})
    part = attribution_part(ScoredRun("t", scores, rows=tmp_path / "rows"))
    assert len(part["queries"]) == 8
    for query in part["queries"]:
        for side in ("helpful", "harmful"):
            one, other = query[side]
            assert one["like"] == other["like"] in (one["id"], other["id"])


def test_what_the_page_says_about_trust(tmp_path):
    trust = attribution_part(scored(tmp_path))["trust"]
    assert trust["predicts"]
    assert trust["examples"] == 5
    assert trust["damping"] == [0.1, 0.3]
    assert trust["coverage"] == 0.5
    assert trust["validated"] is None
    assert trust["same_weights"] is None
    other = {"weights": {"train": ["a"], "queries": ["b"]}, "validated": {"lds": 0.7}}
    trust = attribution_part(scored(tmp_path, **other))["trust"]
    assert (trust["same_weights"], trust["validated"]) == (False, {"lds": 0.7})
    run = scored(tmp_path)
    object.__setattr__(run.scores, "validation", "LDS 0.70")  # what retraining said
    assert attribution_part(run)["trust"]["validated"] == "LDS 0.70"


@pytest.mark.parametrize("about", [{"curvature": "identity"}, {"mode": "cosine"}])
def test_no_change_of_the_loss_is_predicted_without_its_units(tmp_path, about):
    part = attribution_part(scored(tmp_path, **about))
    assert not part["trust"]["predicts"]
    assert ("overall" in part) == ("mode" not in about)


def test_scores_that_are_not_finite_or_zero_are_in_no_list():
    values = np.array([[1.0, np.nan, -2.0, np.inf, -np.inf, 0.0, 3.0, -1.0]])
    layers = {"one": values / 2}
    scores = Scores(np.array(["q"]), np.arange(8), values, layers, {"mode": "dot"})
    (query,) = attribution_part(ScoredRun("t", scores))["queries"]
    assert [(row["id"], row["layers"]) for row in query["helpful"]] == [(6, [1.5]), (0, [0.5])]
    assert [(row["id"], row["layers"]) for row in query["harmful"]] == [(2, [-1.0]), (7, [-0.5])]


def test_a_top_k_has_no_histogram_and_no_groups(tmp_path):
    whole = scored(tmp_path)
    top = ScoredRun("t", whole.scores.top(2), whole.data, None, None, None)
    part = attribution_part(top)
    assert (part["whole"], part["queries"][0]["histogram"]) == (False, None)
    assert [row["id"] for row in part["queries"][0]["helpful"]] == [10, 11]
    assert [row["id"] for row in part["queries"][1]["helpful"]] == [13, 12]
    assert "groups" not in part["queries"][0]
    assert "overall" not in part
    assert part["trust"]["examples"] is None
    assert not part["trust"]["predicts"]


def test_sums_of_groups():
    """Groups of few values, greatest sum first; scores that are not finite do not count."""
    builder = GroupBuilder(np.arange(6))
    kinds = ["b", "a", "b", "c", "a"]
    for each, kind in enumerate(kinds):
        fields = {"kind": kind, "same": 1, "each": f"{each}", "number": 0.5}
        builder.add(each, fields)
    builder.add(77, {"kind": "not scored"})
    columns = builder.columns()
    assert {name: names for name, (names, _) in columns.items()} == {
        "kind": ["b", "a", "c"],
        "each": ["0", "1", "2", "3", "4"],
    }
    values = np.array([1.0, 5.0, 1.0, 9.0, np.nan, 100.0])  # the last has no columns
    found = group_sums({"kind": columns["kind"]}, values)
    assert found == {"kind": [["c", 1, 9.0], ["a", 1, 5.0], ["b", 2, 2.0]]}


@pytest.mark.parametrize("many", [MOST_GROUPS, MOST_GROUPS + 1])
def test_a_column_of_many_values_is_not_a_grouping(many):
    builder = GroupBuilder(list(range(many)))
    for each in range(many):
        builder.add(each, {"name": each})
    assert bool(builder.columns()) == (many == MOST_GROUPS)


def test_which_rows_scores_are_about(tmp_path):
    """Those of the run that they are saved in, or else those that they name."""
    stores = [tmp_path / "train" / "logs" / "whole", tmp_path / "other" / "logs" / "whole"]
    for path in stores:
        with sawlog.store.create(path) as writer:
            writer.append([1], {"grad/w": np.ones((1, 2))})
    about = {"mode": "dot", "train": str(stores[1])}
    scores = Scores(np.array(["q"]), np.array([1]), np.ones((1, 1)), about=about)
    inside, outside = tmp_path / "train" / "scores" / "asked", tmp_path / "asked"
    for path in (inside, outside):
        scores.save(path)
    source = PageSource([tmp_path / "train"])
    (page,) = source.runs.values()
    assert [source._scored(page, path).rows for path in (inside, outside)] == stores


def test_one_path_is_a_list_of_one(tmp_path):
    make_seeds(tmp_path / "runs", seeds=2, steps=4)
    for given in (tmp_path / "runs", str(tmp_path / "runs"), [str(tmp_path / "runs")]):
        assert len(PageSource(given).runs) == 2


def test_what_is_given_for_a_page_is_checked_first(tmp_path):
    make_seeds(tmp_path / "runs", seeds=1, steps=4)
    with pytest.raises(StoreNotFoundError, match="no store at"):
        PageSource(tmp_path, scores=[str(tmp_path / "none")])
    with pytest.raises(ArgumentError, match="does not contain scores"):
        PageSource(tmp_path, scores=[tmp_path / "runs" / "seed-0"])
    for points in (1, -3, "many"):
        with pytest.raises(ArgumentError, match="`points` must be an integer of at least 2"):
            PageOptions(points=points)

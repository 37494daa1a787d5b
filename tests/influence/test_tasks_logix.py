"""Results as LogIX has them, joined queries, and what is compared and kept."""

import numpy as np
import pytest
from rich.console import Console

from sawlog import influence, store
from sawlog._array_device import NUMPY, ArrayDevice
from sawlog.curvature import Curvature, Diagonal, Joint
from sawlog.errors import ArgumentError
from sawlog.factored import Projection
from sawlog.influence import Influence, LogLoader, Logs, Scores
from sawlog.influence import _attribute as attributing
from sawlog.influence import _compatibility as compatibility
from sawlog.influence._compatibility import check_projected
from sawlog.influence._scoring_job import check_finite
from sawlog.run_files._options import Compression, Options
from sawlog.run_files._provenance import Provenance
from tests.influence.stores import written


@pytest.mark.parametrize("size", [1, 3, 7, 10, 20])
def test_a_loader_gives_every_row_once_with_its_id(tmp_path, size):
    rows = {"a": np.arange(20.0).reshape(10, 2), "b": np.arange(10.0)[:, None]}
    ids = np.random.default_rng(0).permutation(10)
    written(tmp_path / "logs", rows, ids, each=4)
    loader = LogLoader(Logs(tmp_path / "logs"), size)
    for _ in range(2):
        batches = list(loader)
        assert [len(own) for own, _ in batches][:-1] == [size] * (len(loader) - 1)
        assert len(batches) == len(loader) == -(-10 // size)
        assert np.concatenate([own for own, _ in batches]).tolist() == ids.tolist()
        for name, values in rows.items():
            found = np.concatenate([own[name].reshape(len(own[name]), -1) for _, own in batches])
            assert found.tolist() == values.tolist()
    with pytest.raises(ArgumentError, match="batch_size"):
        LogLoader(Logs(rows), 0)


def test_the_face_of_a_run(tmp_path):
    """Which side is which, and every option of the dialect, against the plain functions."""
    random = np.random.default_rng(0)
    train, some, others = ({"w": random.normal(size=(n, 3))} for n in (7, 2, 3))
    face = Influence(lambda: train)
    fisher = np.linalg.inv(train["w"].T @ train["w"] / 7 + 0.5 * np.eye(3))
    for options, measure in (
        ({"hessian": "raw", "damping": 0.5}, fisher),
        ({"curvature": "fisher", "damping": 0.5}, fisher),
        ({"hessian": "none"}, np.eye(3)),
        ({"hessian": "raw", "precondition": False}, np.eye(3)),
    ):
        found = face.compute_influence_all(some, **options)
        np.testing.assert_allclose(found.values, some["w"] @ measure @ train["w"].T, rtol=1e-9)
        loader = LogLoader(Logs(others))
        if measure is not fisher:
            found = face.compute_influence_all(some, loader, **options)
            np.testing.assert_allclose(found.values, some["w"] @ others["w"].T, rtol=1e-9)
        found = face.compute_influence(some, others, **options)
        np.testing.assert_allclose(found.values, some["w"] @ measure @ others["w"].T, rtol=1e-9)
        for log in (None, others):
            own = (train if log is None else log)["w"]
            found = face.compute_self_influence(log, **options)
            expected = np.einsum("ni,ij,nj->n", own, measure, own)
            np.testing.assert_allclose(found.values, expected, rtol=1e-9)
    for options, said in (
        ({"hessian": "exact"}, "`hessian` must be one of 'auto'"),
        ({"influence_groups": 1}, "per_"),
    ):
        with pytest.raises(ArgumentError, match=said):
            face.compute_influence_all(some, **options)
    with pytest.raises(ArgumentError, match="no queries"):
        face.compute_influence_all()


def test_the_analysis_of_a_run_reads_nothing_until_it_is_used():
    calls = []
    train = {"w": np.eye(2)}
    face = Influence(lambda: calls.append(1) or train)
    assert calls == []
    face.compute_influence_all(train, LogLoader(Logs(train)), curvature="identity")
    assert calls == []
    for compute in (
        lambda: face.compute_influence_all(train, curvature="identity"),
        lambda: face.compute_influence(train, train, curvature="identity"),
        lambda: face.compute_self_influence(curvature="identity"),
    ):
        calls.clear()
        compute()
        assert calls == [1]


def test_columns_are_those_of_a_store(tmp_path):
    written(tmp_path / "logs", {"w": np.eye(2)}, [0, 1])
    assert Logs(tmp_path / "logs").columns == ["grad/w"]
    with pytest.raises(ArgumentError, match=r"Hint: logs\.layers"):
        _ = Logs({"w": np.eye(2)}).columns


# -- joining queries ------------------------------------------------------------------------------


def test_logs_of_different_lengths_and_scales_are_joined():
    """Zeros come behind those that end sooner; rows in few bits are joined as they were logged."""
    short, long = np.ones((1, 2, 3)), np.full((2, 4, 3), 2.0)
    joined = Logs({"forward/a": short}, ids=["x"]) + Logs({"forward/a": long}, ids=["y", "z"])
    assert list(joined.ids) == ["x", "y", "z"]
    (rows,) = joined.whole().rows().values()
    assert rows[0].tolist() == [*short[0].tolist(), [0, 0, 0], [0, 0, 0]]
    assert rows[1:].tolist() == long.tolist()
    one = {"w": np.array([[2, 4]], np.int8), "w.scale": np.array([0.5])}
    two = {"w": np.array([[1, 1]], np.int8), "w.scale": np.array([3.0])}
    joined = Logs(one, ids=[1]) + Logs(two, ids=[2])
    assert joined.whole().rows()["w"].reshape(2, 2).tolist() == [[1.0, 2.0], [3.0, 3.0]]


def test_some_rows_with_their_scales():
    """In the order that is asked for, each with the scale of its own."""
    rows = {"w": np.ones((4, 2), np.int8), "w.scale": np.array([1.0, 2.0, 3.0, 4.0])}
    logs = Logs(rows, ids=[7, 5, 9, 3])
    part = logs.gather([3, 7, 9])
    assert part.rows()["w"][:, 0].ravel().tolist() == [4.0, 1.0, 3.0]
    queries = {"w": np.array([[1.0, 0.0]])}
    for mode, expected in (("dot", [1, 2, 3, 4]), ("l2", [0, -1, -4, -9])):
        expected = np.array(expected) - (1 if mode == "l2" else 0) * np.array([1, 4, 9, 16])
        scores = influence.attribute(logs, queries, curvature="identity", mode=mode)
        np.testing.assert_allclose(scores.values[0], expected, atol=1e-6)
    cosines = influence.attribute(logs, queries, curvature="identity", mode="cosine")
    np.testing.assert_allclose(cosines.values, np.full((1, 4), np.sqrt(0.5)), rtol=1e-6)


@pytest.mark.parametrize(
    ("k", "ids", "values"),
    [
        (2, ["2", "0", "4", "1"], ["+3", "+1", "-2", "-4"]),
        (3, ["2", "0", "3"], ["+3", "+1", "+0.5"]),  # the worst three would have one of the best
    ],
)
def test_a_table_of_the_best_and_the_worst(k, ids, values):
    scores = Scores(np.array(["q"]), np.arange(5), np.array([[1.0, -4.0, 3.0, 0.5, -2.0]]))
    console = Console(width=100, color_system=None)
    with console.capture() as caught:
        console.print(influence.attribution_table(scores, [f"text{i}" for i in range(5)], k=k))
    lines = [line for line in caught.get().splitlines() if "text" in line]
    assert [line.split("│")[3].strip() for line in lines] == ids
    assert [line.split("│")[2].strip() for line in lines] == values


# -- what is compared, and what is kept -----------------------------------------------------------


def test_rows_that_were_projected_on_other_directions():
    """PCA of other covariances: the options are the same, and the numbers mean something else."""

    def logs(projection, kind="pca"):
        how = Options(compress=Compression(kind=kind, rank=2)).to_json()
        notes = [Provenance("weights", {}, each).to_json() for each in projection]
        return Logs({"w": np.ones((1, 2))}, meta={"options": how, "provenance": notes})

    check_projected(logs(["p"]), logs(["p"]))
    check_projected(logs([]), logs(["p"]))  # nothing is known of it
    check_projected(logs(["p"], "orthonormal"), logs(["q"], "orthonormal"))
    for one, other in ((["p"], ["q"]), (["p", "q"], ["p", "q"]), (["p"], ["p", "q"])):
        with pytest.raises(ArgumentError, match="main directions of different covariances"):
            check_projected(logs(one), logs(other))
    with pytest.raises(ArgumentError, match="were compressed by"):
        check_projected(logs(["p"]), logs(["p"], "gaussian"))


def test_stores_without_notes_are_compared_by_their_directions(tmp_path, monkeypatch):
    """Both sides of every layer; one that stays whole does so in both."""
    options = Options(compress=Compression(kind="pca", rank=2)).to_json()
    stores = []
    for name in ("one", "two"):
        meta = {"options": options, "blocks": []}
        with store.create(tmp_path / name, meta=meta) as writer:
            writer.append([1], {"grad/w": np.ones((1, 2))})
        stores.append(Logs(tmp_path / name))
    eye, other = np.eye(2), np.ones((2, 2))
    for right, same in (
        ({"w": Projection(eye.copy(), None)}, True),
        ({"w": Projection(other, None)}, False),
        ({"w": Projection(eye, eye)}, False),
        ({"v": Projection(eye, None)}, False),
    ):
        known = {"one": {"w": Projection(eye, None)}, "two": right}
        monkeypatch.setattr(
            compatibility, "projections_of", lambda reader, k=known: k[reader.path.name]
        )
        if same:
            check_projected(*stores)
            continue
        with pytest.raises(ArgumentError, match="main directions of different covariances"):
            check_projected(*stores)


def test_the_accelerator_that_has_the_queries_is_where_they_are_scored(monkeypatch):
    elsewhere = ArrayDevice("torch", "cuda:1")
    monkeypatch.setattr(attributing, "device_of", lambda array: elsewhere)
    assert attributing._device_for(None, {"w": object()}) == elsewhere
    assert attributing._device_for("numpy", {"w": object()}) == NUMPY
    assert attributing._device_for(None, "a path") == attributing._device_for(None, {}) == NUMPY
    monkeypatch.setattr(attributing, "device_of", lambda array: ArrayDevice("jax", "cpu:0"))
    assert attributing._device_for(None, {"w": object()}) == NUMPY


def test_examples_with_one_score_that_is_not_finite():
    scores = np.zeros((2, 3))
    scores[1, 2] = np.nan
    with pytest.raises(ArgumentError, match=r"of 1 examples .*: 30\. "):
        check_finite(scores, [10, 20, 30])


def test_a_state_is_that_of_ids_names_dtypes_shapes_and_scales():
    array = np.arange(6, dtype=np.int32)
    several = [
        Logs({"w": array}),
        Logs({"w": array}, ids=np.arange(1, 7)),
        Logs({"v": array}),
        Logs({"w": array.view(np.float32)}),
        Logs({"w": array.reshape(6, 1)}),
        Logs({"w": array + 1}),
        Logs({"w": array, "w.scale": np.ones(6)}),
        Logs({"w": array, "w.scale": np.full(6, 2.0)}),
    ]
    assert len({each.state() for each in several}) == 8
    assert Logs({"w": array.copy()}).state() == several[0].state()


def test_a_checkpoint_is_that_of_the_lengths_too(tmp_path):
    """What a curvature does to the lengths of examples alone, where queries have nothing."""
    rows = {"a": np.ones((3, 1)), "b": np.arange(1.0, 4)[:, None]}
    queries = {"a": np.ones((1, 1)), "b": np.zeros((1, 1))}
    shapes = {"a": (1,), "b": (1,)}

    def layers(b):
        return Curvature("d", {"a": Diagonal(np.ones(1)), "b": Diagonal(np.full(1, b))})

    def joint(b):
        return Curvature("j", {}, Joint(np.diag([1.0, b]), shapes))

    same = {"a": 0.0, "b": 0.0}
    for one, other, dampings in (
        (joint(1.0), joint(4.0), (same, same)),
        (layers(1.0), layers(4.0), (same, same)),
        (layers(1.0), layers(1.0), (same, {"a": 0.0, "b": 3.0})),
    ):
        for curvature, damping, b in ((one, dampings[0], 1.0), (other, dampings[1], 4.0)):
            options = {"curvature": curvature, "damping": damping, "mode": "cosine"}
            found = influence.attribute(rows, queries, checkpoint=tmp_path / "done", **options)
            expected = 1 / np.sqrt(1 + rows["b"].ravel() ** 2 / b)
            np.testing.assert_allclose(found.values[0], expected, rtol=1e-6)


def test_shades_are_those_of_each_query():
    table = influence.token_table(np.array([[[1.0, -1.0]], [[100.0, 1.0]]]), [["a", "b"]])
    styles = [[str(span.style) for span in cell.spans] for cell in table.columns[3]._cells]
    green, red = "black on rgb(0,170,70)", "black on rgb(225,50,50)"
    assert styles[0] == [green, red]
    assert styles[1][0] == green
    assert len(styles[1]) == 1 or styles[1][1] not in (green, red)

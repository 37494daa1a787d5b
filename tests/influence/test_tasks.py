"""What people do with scores: wrong labels, near-duplicates, pruning, methods by name, loaders."""

import numpy as np
import pytest
from rich.console import Console

from sawlog import influence, store
from sawlog._array_device import NUMPY, ArrayDevice
from sawlog.curvature import Curvature, Diagonal, Joint
from sawlog.errors import ArgumentError
from sawlog.factored import Projection
from sawlog.influence import Influence, LogLoader, Logs, Ranking, Scores
from sawlog.influence import _attribute as attributing
from sawlog.influence import _compatibility as compatibility
from sawlog.influence import _methods as methods
from sawlog.influence._compatibility import check_projected
from sawlog.influence._scoring_job import check_finite
from sawlog.run_files import ragged
from sawlog.run_files._options import Compression, Options
from sawlog.run_files._provenance import Provenance
from tests.influence.stores import written


def angles(*degrees):
    turned = np.radians(degrees)
    return np.stack([np.cos(turned), np.sin(turned)], 1)


# -- near-duplicates ------------------------------------------------------------------------------


def test_near_duplicates_chain_and_the_largest_group_comes_first():
    rows = {"w": angles(0, 90, 2, 200, 91, 4, 300) * np.arange(1, 8)[:, None]}
    logs = Logs(rows, ids=[10, 20, 30, 40, 50, 60, 70])
    limit = np.cos(np.radians(2.5))  # neighbours are 2 degrees apart, the ends of the chain 4
    assert influence.near_duplicates(logs, threshold=limit) == [[10, 30, 60], [20, 50]]
    assert influence.near_duplicates(logs, threshold=1.0) == []
    with pytest.raises(ArgumentError, match="from -1 to 1"):
        influence.near_duplicates(logs, threshold=1.1)


@pytest.mark.parametrize("neighbours", [1, 2, 3])
def test_an_example_is_no_neighbour_of_its_own(neighbours):
    logs = Logs({"w": angles(0, 1, 120, 121, 240)}, ids=list("abcde"))
    found = influence.near_duplicates(logs, threshold=0.999, neighbours=neighbours)
    assert found == [["a", "b"], ["c", "d"]]


def test_groups_that_meet_are_one():
    """Two chains that are joined by their last link, whichever way they are walked."""
    logs = Logs({"w": angles(0, 2, 6, 8, 4)})
    assert influence.near_duplicates(logs, threshold=np.cos(np.radians(2.5))) == [[0, 1, 2, 3, 4]]


def test_rows_that_are_equal_have_a_cosine_of_one():
    """Also where float32 gives a little less, and at the greatest threshold there is."""
    row = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    rows = {"w": np.stack([row, 3 * row, -row])}
    assert influence.near_duplicates(rows, threshold=1.0) == [[0, 1]]


def test_near_duplicates_in_a_curvature():
    """Apart as they are, near in the measure of a curvature that knows what matters."""
    rows = {"w": np.array([[1.0, 0.1], [1.0, -0.1]])}
    curvature = Curvature("diagonal", {"w": Diagonal(np.array([0.0, 99.0]))})
    assert influence.near_duplicates(rows, threshold=0.99) == []
    options = {"curvature": curvature, "damping": 1.0}
    assert influence.near_duplicates(rows, threshold=0.99, **options) == [[0, 1]]


# -- rankings and pruning -------------------------------------------------------------------------


def test_label_errors_are_sorted_with_their_layers():
    rows = {"a": np.array([[1.0], [3.0], [2.0]]), "b": np.array([[0.0], [1.0], [4.0]])}
    ranking = influence.label_errors(Logs(rows, ids=["x", "y", "z"]), curvature="identity")
    assert ranking.ids.tolist() == ["z", "y", "x"]
    assert ranking.values.tolist() == [20.0, 10.0, 1.0]
    assert {n: v.tolist() for n, v in ranking.layers.items()} == {
        "a": [4.0, 9.0, 1.0],
        "b": [16.0, 1.0, 0.0],
    }


def test_self_influence_is_damped_as_asked():
    """By a number, by layer, and by default; beside the code, as all of it is."""
    rows = {"a": np.array([[2.0], [4.0]]), "b": np.array([[1.0, 3.0], [5.0, 0.0]])}
    layers = {"a": Diagonal(np.array([3.0])), "b": Diagonal(np.array([1.0, 2.0]))}
    curvature = Curvature("diagonal", layers)
    for damping, added in ((0.5, (0.5, 0.5)), ({"a": 1.0, "b": 7.0}, (1.0, 7.0))):
        ranking = influence.self_influence(rows, curvature=curvature, damping=damping)
        expected = {
            "a": (rows["a"] ** 2 / (3 + added[0])).sum(1),
            "b": (rows["b"] ** 2 / (np.array([1, 2]) + added[1])).sum(1),
        }
        for name, values in expected.items():
            np.testing.assert_allclose(ranking.layers[name], values, rtol=1e-12)
        np.testing.assert_allclose(ranking.values, sum(expected.values()), rtol=1e-12)
        top = influence.label_errors(rows, curvature=curvature, damping=damping)
        np.testing.assert_allclose(top.values, sorted(ranking.values, reverse=True))


def test_equal_numbers_stay_in_order():
    many = Ranking(np.arange(40), np.repeat([1.0, 2.0], 20))
    assert [each for each, _ in many.top(40)] == [*range(20, 40), *range(20)]
    assert [each for each, _ in many.top(25, least=True)] == list(range(25))


def test_pruning():
    values = np.array([[1.0, -9.0, 2.0, 0.0], [1.0, 1.0, -5.0, 0.5]])
    scores = Scores(np.arange(2), np.array([10, 20, 30, 40]), values)
    keep, out = influence.prune(scores, 0.5)  # in sum 2, -8, -3, 0.5
    assert (keep.tolist(), out.tolist()) == ([10, 40], [20, 30])
    keep, out = influence.prune(Ranking(scores.ids, np.array([3.0, 1.0, 4.0, 4.0])), 0.5)
    assert (keep.tolist(), out.tolist()) == ([10, 20], [30, 40])
    for share, left_out in ((0.0, 0), (1.0, 4), (0.3, 1)):
        assert len(influence.prune(scores, share)[1]) == left_out
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        influence.prune(scores, 1.5)


# -- methods --------------------------------------------------------------------------------------


@pytest.fixture
def checkpoints():
    random = np.random.default_rng(0)
    return [
        ({"w": random.normal(size=(6, 3))}, {"w": random.normal(size=(2, 3))}) for _ in range(3)
    ]


def test_tracin_is_a_sum_with_rates(checkpoints):
    dots = [queries["w"] @ train["w"].T for train, queries in checkpoints]
    found = influence.tracin(checkpoints).values
    np.testing.assert_allclose(found, sum(dots), rtol=1e-9)
    rates = [0.1, 0.0, 3.0]
    weighed = sum(rate * each for rate, each in zip(rates, dots, strict=True))
    found = influence.tracin(checkpoints, rates)
    np.testing.assert_allclose(found.values, weighed, rtol=1e-9)
    for sign, order in (("positive", np.argsort(-weighed)), ("negative", np.argsort(weighed))):
        best = influence.tracin(checkpoints, rates, top_k=2, sign=sign)
        assert best.ids.tolist() == order[:, :2].tolist()


def test_trak_is_a_mean_of_scores_in_the_fisher(checkpoints):
    found = influence.trak(checkpoints, damping=0.5)
    expected = []
    for train, queries in checkpoints:
        fisher = train["w"].T @ train["w"] / 6 + 0.5 * np.eye(3)
        expected.append(queries["w"] @ np.linalg.inv(fisher) @ train["w"].T)
    np.testing.assert_allclose(found.values, np.mean(expected, 0), rtol=1e-9)


def test_cosines(checkpoints):
    train, queries = checkpoints[0]
    fisher = np.linalg.inv(train["w"].T @ train["w"] / 6 + 0.5 * np.eye(3))
    for score, measure in (
        (influence.gradient_cosine(train, queries), np.eye(3)),
        (influence.trackstar(train, queries, damping=0.5), fisher),
    ):
        lengths = [
            np.sqrt(np.einsum("ni,ij,nj->n", x["w"], measure, x["w"])) for x in (queries, train)
        ]
        dots = queries["w"] @ measure @ train["w"].T
        np.testing.assert_allclose(score.values, dots / np.outer(*lengths), rtol=1e-9)


def test_activations_are_pooled():
    random = np.random.default_rng(0)
    train, queries = random.normal(size=(5, 4, 3)), random.normal(size=(2, 4, 3))
    logs = [{"forward/a": train}, {"forward/a": queries}]
    for pool, one, other in (
        ("mean", train.mean(1), queries.mean(1)),
        (-1, train[:, -1], queries[:, -1]),
        (1, train[:, 1], queries[:, 1]),
        (None, train.reshape(5, -1), queries.reshape(2, -1)),
    ):
        found = influence.activation_similarity(*logs, "forward/a", pool=pool).values
        lengths = np.outer(np.linalg.norm(other, axis=1), np.linalg.norm(one, axis=1))
        np.testing.assert_allclose(found, other @ one.T / lengths, rtol=1e-9)
    for pool in (4, -5, "max", True):
        with pytest.raises(ArgumentError, match="`pool` must be"):
            influence.activation_similarity(*logs, "forward/a", pool=pool)


def test_activations_of_different_lengths_are_pooled(tmp_path, monkeypatch):
    """Each example over its own positions, or from its own end; more than are read at once."""
    monkeypatch.setattr(methods, "_BATCH", 3)
    random = np.random.default_rng(0)
    rows = {
        each: random.normal(size=(length, 2))
        for each, length in zip([40, 10, 30, 20, 60, 50, 70], [4, 4, 2, 7, 7, 3, 2], strict=True)
    }
    with store.create(tmp_path / "logs") as writer:
        for ids in ([40, 10], [30], [20, 60], [50], [70]):
            own = np.stack([rows[each] for each in ids])
            ragged.append(writer, np.array(ids), {"forward/a": own})
    queries = {"forward/a": random.normal(size=(2, 2))}
    for pool, pooled in (
        ("mean", lambda own: own.mean(0)),
        (-1, lambda own: own[-1]),
        (-2, lambda own: own[-2]),
        (0, lambda own: own[0]),
    ):
        with store.open(tmp_path / "logs") as reader:
            logs = methods._pooled(Logs(reader, names=["forward/a"]), pool)
        expected = np.stack([pooled(own) for own in rows.values()])
        assert np.asarray(logs.ids).tolist() == list(rows)
        found = influence.attribute(logs, queries, curvature="identity", names=["forward/a"])
        np.testing.assert_allclose(found.values, queries["forward/a"] @ expected.T, rtol=1e-6)
    with pytest.raises(ArgumentError, match="that all examples have"):
        influence.activation_similarity(tmp_path / "logs", queries, "forward/a", pool=2)


# -- as LogIX has it ------------------------------------------------------------------------------


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

"""What cannot be scored is an error that says what to do, never a different score."""

import shutil

import numpy as np
import pytest

import sawlog
from sawlog import curvature as curvatures
from sawlog import store
from sawlog.curvature import Curvature, Diagonal, Joint, fit
from sawlog.errors import ArgumentError, StoreNotFoundError, UnknownIdError
from sawlog.influence import LogLoader, Logs, attribute, curvature_for, self_influence
from tests.influence import dense
from tests.influence.dense import close
from tests.influence.stores import written
from tests.torch.programs import mlp

ROWS = {"a": np.ones((3, 2, 2)), "b": np.ones((3, 4))}


# -- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
def test_a_missing_statistic_names_the_stage_to_run(tmp_path, kind):
    run = dense.logged(tmp_path, mlp(), statistic=[])
    for score in (
        lambda: attribute(run.store_path, run.store_path, curvature=kind),
        lambda: self_influence(run.store_path, curvature=kind),
        lambda: attribute(ROWS, ROWS, curvature=kind),
    ):
        with pytest.raises(ArgumentError, match=r'Hint: .* run\.setup\(statistic="kfac".*finalize'):
            score()
    assert not (run.path / "curvature").exists()


def test_the_default_needs_statistics_too():
    with pytest.raises(ArgumentError, match=r"EK-FAC needs the covariances of both factors of 'a'"):
        attribute(ROWS, ROWS)


def test_statistics_of_another_compression_do_not_count(tmp_path):
    program = mlp()
    dense.logged(tmp_path, program, save=[])
    run = dense.logged(tmp_path, program, statistic=[], compress=2)
    with pytest.raises(ArgumentError, match="the same compression"):
        attribute(run.store_path, run.store_path, curvature="kfac")


def test_statistics_of_some_layers_do_not_count_for_others(tmp_path):
    program = mlp()
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(statistic="kfac", log=["forward", "grad"])
    run.watch(program.model, quiet=True)
    with run(data_id=range(5)):
        program.of().backward()
    run.finalize()
    with pytest.raises(ArgumentError, match=r"K-FAC of 'forward/0' was not measured"):
        attribute(run.store_path, run.store_path, names=["forward/0"], curvature="kfac")
    assert (
        attribute(
            run.store_path, run.store_path, names=["forward/0"], curvature="fisher"
        ).values.size
        == 25
    )


# -- what is kept ---------------------------------------------------------------------------------


def fits(monkeypatch):
    """How often a curvature is fitted, and to which layers."""
    seen, plain = [], curvatures.fit

    def fit(kind, rows, measured=None, **options):
        seen.append((kind, sorted(next(iter(rows())))))
        return plain(kind, rows, measured, **options)

    monkeypatch.setattr(curvatures, "fit", fit)
    return seen


@pytest.mark.parametrize("kind", ["diagonal", "fisher", "kfac", "ekfac", "shampoo"])
def test_a_curvature_is_kept_until_the_store_has_other_rows(tmp_path, monkeypatch, kind):
    seen = fits(monkeypatch)
    program = mlp(size=7)
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(dtype="float64", precision="float64", statistic="kfac")
    run.watch(program.model, quiet=True)
    for ids, times in ((range(4), 1), (range(4, 7), 2)):
        with run(data_id=ids):
            program.of(program.part(slice(ids.start, ids.stop))).backward()
        run.flush()
        rows = dense.rows_of(run)
        expected = dense.influence(kind, rows, rows, 1e-2, run.statistics.kfac)
        for _ in range(3):
            scores = attribute(run.store_path, run.store_path, curvature=kind, damping=1e-2)
            close(scores.values, sum(expected.values()))
        assert len(seen) == times
    run.finalize()
    assert [path.name for path in (run.path / "curvature").glob("*/*")] == [kind]


def test_rows_that_were_replaced_are_fitted_anew(tmp_path, monkeypatch):
    """The number of rows stays the same."""
    seen = fits(monkeypatch)
    program = mlp()
    for factor in (1.0, 3.0):
        run = sawlog.init(project="run", root=tmp_path)
        run.setup(dtype="float64", duplicates="last", reduction="sum")
        run.watch(program.model, quiet=True)
        with run(data_id=range(5)):
            (factor * program.of()).backward()
        run.finalize()
        rows = {n: g[-5:] for n, g in dense.rows_of(run).items()}
        expected = dense.influence("fisher", rows, rows, 1e-2)
        scores = attribute(run.store_path, run.store_path, curvature="fisher", damping=1e-2)
        close(scores.values, sum(expected.values()))
    assert len(seen) == 2


def test_statistics_that_changed_are_fitted_anew(tmp_path, monkeypatch):
    seen = fits(monkeypatch)
    program = mlp()
    run = dense.logged(tmp_path, program)
    attribute(run.store_path, run.store_path, curvature="kfac")
    shutil.rmtree(run.path / "statistics")
    with pytest.raises(ArgumentError, match="statistic="):
        attribute(run.store_path, run.store_path, curvature="kfac")
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(dtype="float64", precision="float64", statistic="kfac", save=[])
    run.watch(program.model, quiet=True)
    with run(data_id=range(3)):
        program.of(program.part(slice(3))).backward()
    run.finalize()
    rows = dense.rows_of(run)
    expected = dense.influence("kfac", rows, rows, 1e-2, run.statistics.kfac)
    scores = attribute(run.store_path, run.store_path, curvature="kfac", damping=1e-2)
    close(scores.values, sum(expected.values()))
    assert len(seen) == 3


def test_layers_are_fitted_as_they_are_asked_for(tmp_path, monkeypatch):
    seen = fits(monkeypatch)
    run = dense.logged(tmp_path, mlp())
    names = sorted(dense.rows_of(run))
    whole = attribute(run.store_path, run.store_path, curvature="fisher", names=[names[0]])
    attribute(run.store_path, run.store_path, curvature="fisher")
    assert seen == [("fisher", names[:1]), ("fisher", names[1:])]
    again = attribute(run.store_path, run.store_path, curvature="fisher", names=[names[0]])
    np.testing.assert_array_equal(again.values, whole.values)
    attribute(run.store_path, run.store_path, curvature="fisher", names=names[1:3])
    assert len(seen) == 2


def test_what_is_kept_but_damaged_is_fitted_anew(tmp_path, monkeypatch):
    run = dense.logged(tmp_path, mlp())
    plain = attribute(run.store_path, run.store_path, curvature="fisher")
    (segment,) = run.path.glob("curvature/*/fisher/segments/*")
    segment.write_bytes(segment.read_bytes()[:-100])
    seen = fits(monkeypatch)
    found = attribute(run.store_path, run.store_path, curvature="fisher")
    np.testing.assert_array_equal(found.values, plain.values)
    assert len(seen) == 1


def test_a_plain_store_keeps_nothing(tmp_path):
    written(tmp_path / "logs", ROWS, [1, 2, 3])
    attribute(tmp_path / "logs", ROWS, curvature="fisher")
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


# -- layers and shapes ----------------------------------------------------------------------------


def test_other_layers(tmp_path):
    less = {"a": ROWS["a"]}
    with pytest.raises(
        ArgumentError, match=r"The queries have no logs of the layers b\. Hint: wat"
    ):
        attribute(ROWS, less, curvature="identity")
    with pytest.raises(ArgumentError, match=r"The examples have no logs of the layers b\. Hint: w"):
        attribute(less, ROWS, curvature="identity")
    scores = attribute(ROWS, less, curvature="identity", names="a")
    np.testing.assert_array_equal(scores.values, np.full((3, 3), 4.0))
    for names in (["c"], ["a", "c"]):
        with pytest.raises(ArgumentError, match=r"no layer 'c'\. Layers: a, b"):
            attribute(ROWS, ROWS, curvature="identity", names=names)
    with pytest.raises(ArgumentError, match="`names` is empty"):
        attribute(ROWS, ROWS, curvature="identity", names=[])


def test_other_shapes(tmp_path):
    written(tmp_path / "logs", ROWS, [1, 2, 3])
    queries = {**ROWS, "a": np.ones((1, 2, 3))}
    queries["b"] = np.ones((1, 4))
    for train in (ROWS, tmp_path / "logs"):
        with pytest.raises(ArgumentError, match=r"'a' have the shape \[2, 3\] in the queries and"):
            attribute(train, queries, curvature="identity")
    with pytest.raises(ArgumentError, match=r"different numbers of examples: \{'a': 3, 'b': 2\}"):
        attribute({**ROWS, "b": np.ones((2, 4))}, ROWS, curvature="identity")
    with pytest.raises(ArgumentError, match="has no layers"):
        attribute({}, ROWS, curvature="identity")
    with pytest.raises(ArgumentError, match="got a number"):
        attribute({"a": 1.0}, ROWS, curvature="identity")


def test_other_compression_of_the_same_shape(tmp_path):
    runs = [
        dense.logged(tmp_path, mlp(), project=f"run{seed}", compress={"rank": 2, "seed": seed})
        for seed in (0, 1)
    ]
    with pytest.raises(ArgumentError, match="their numbers mean different things"):
        attribute(runs[0].store_path, runs[1].store_path, curvature="identity")


def test_a_fitted_curvature_of_something_else():
    with pytest.raises(ArgumentError, match="has no layer 'b'; it was fitted to: a"):
        attribute(ROWS, ROWS, curvature=Curvature("mine", {"a": Diagonal(np.ones(4))}))
    layers = {"a": Diagonal(np.ones(4)), "b": Diagonal(np.ones(5))}
    with pytest.raises(ArgumentError, match=r"of the shape \[5\], but these have \[4, 1\]"):
        attribute(ROWS, ROWS, curvature=Curvature("mine", layers))


def test_rows_that_are_no_numbers_cannot_be_fitted_to():
    rows = {"a": np.array([[1.0], [np.nan]])}
    with pytest.raises(ArgumentError, match="gradients of 'a' that are infinite or NaN"):
        attribute(rows, rows, curvature="fisher")


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"curvature": "kfca"}, r"'ekfac', 'shampoo', or a fitted Curvature; got 'kfca'"),
        ({"mode": "cos"}, r"`mode` must be one of 'dot', 'cosine', 'l2'; got 'cos'"),
        ({"sign": "plus"}, r"`sign` must be one of 'positive', .*; got 'plus'"),
        ({"top_k": 0}, r"`top_k` must be a positive integer; got 0"),
        ({"top_k": True}, r"`top_k` must be a positive integer; got True"),
        ({"top_k": 2.0}, r"`top_k` must be a positive integer; got 2\.0"),
        (
            {"damping": -1, "curvature": "fisher"},
            r"`damping` must be a non-negative number, .*; got -1",
        ),
        ({"per_layer": True, "mode": "cosine"}, r'sums over layers\. Hint: mode="dot"'),
        ({"budget": 0}, r"`budget` must be a positive integer; got 0"),
        ({"budget": "1GB"}, r"`budget` must be a positive integer; got '1GB'"),
    ],
)
def test_options(options, message):
    with pytest.raises(ArgumentError, match=message):
        attribute(ROWS, ROWS, **{"curvature": "identity", **options})


def test_no_store(tmp_path):
    with pytest.raises(StoreNotFoundError):
        attribute(tmp_path / "nothing", ROWS)


# -- logs -----------------------------------------------------------------------------------------


def test_ids_of_logs_in_memory():
    with pytest.raises(ArgumentError, match="2 ids for 3 examples"):
        Logs(ROWS, ids=[1, 2])
    with pytest.raises(ArgumentError, match="the same id"):
        Logs(ROWS, ids=["x", "y", "x"])
    with pytest.raises(ArgumentError, match="integers or strings"):
        Logs(ROWS, ids=[0.5, 1.5, 2.5])
    logs = Logs({"a": np.arange(3.0)}, ids=("x", "y", "z"))
    np.testing.assert_array_equal(logs.gather(["z", "x"]).columns["a"].values, [2.0, 0.0])
    with pytest.raises(UnknownIdError, match=r"no logs of the examples \['w'\]"):
        logs.gather(["x", "w"])


def test_gradients_are_what_counts_where_there_are_some(tmp_path):
    mixed = {"grad/w": np.ones((2, 3)), "forward/w": np.full((2, 3), 9.0)}
    with store.create(tmp_path / "logs") as writer:
        writer.append([0, 1], mixed)
    for source in (mixed, tmp_path / "logs"):
        assert Logs(source).layers == ["w"]
        assert Logs(source, names="forward/w").layers == ["forward/w"]
        np.testing.assert_array_equal(
            attribute(source, {"w": np.ones((1, 3))}, curvature="identity").values, [[3.0, 3.0]]
        )
    only = Logs({"forward/w": np.ones((2, 3))})
    assert only.layers == ["forward/w"]


def test_arrays_of_torch_and_jax():
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    rows = [[1.0, 2.0], [0.5, -1.0]]
    for array in (
        torch.tensor(rows),
        torch.tensor(rows, dtype=torch.bfloat16, requires_grad=True),
        jnp.array(rows),
        jnp.array(rows, jnp.bfloat16),
    ):
        scores = attribute({"w": array}, {"w": array[:1]}, curvature="identity")
        np.testing.assert_allclose(scores.values, [[5.0, -1.5]])


def test_curvature_for_gives_what_it_is_given():
    mine = Curvature("mine", {"a": Diagonal(np.ones(4))})
    assert curvature_for(Logs(ROWS), mine) is mine
    assert curvature_for(Logs(ROWS), "identity") is curvatures.IDENTITY


@pytest.mark.parametrize(
    "values",
    [[["a"], ["b"]], [[1j], [2j]], np.zeros(2, "M8[s]"), np.zeros(2, object)],
    ids=["text", "complex", "dates", "objects"],
)
def test_rows_that_are_no_real_numbers(values):
    """Nothing is converted, as a complex number to its real part."""
    given = {"w": np.asarray(values), "v": np.ones((2, 1))}
    right = {"w": np.ones((2, 1)), "v": np.ones((2, 1))}
    said = r"Rows are not real numbers: 'w' \(.*\)\. Hint: choose layers by names=\['v'\]\."
    for train, queries in ((given, right), (right, given)):
        with pytest.raises(ArgumentError, match=said):
            attribute(train, queries, curvature="identity")
        assert attribute(train, queries, curvature="identity", names=["v"]).values.shape == (2, 2)
    with pytest.raises(ArgumentError, match=said):
        self_influence(given, curvature="identity")
    with pytest.raises(ArgumentError, match=said):
        Logs(given).gather([1])
    with pytest.raises(ArgumentError, match=said):
        list(LogLoader(Logs(given)))


def test_shapes_that_have_as_many_elements_in_another_order():
    """Axes may be merged, not swapped: those of queries, and of what a curvature was fitted to."""
    rows = {"w": np.arange(24.0).reshape(2, 3, 4)}
    flat = {"w": rows["w"].reshape(2, 12)}
    swapped = {"w": rows["w"].swapaxes(1, 2)}
    expected = flat["w"] @ flat["w"].T
    for queries in (rows, flat, {"w": rows["w"].reshape(2, 3, 2, 2)}):
        assert attribute(rows, queries, curvature="identity").values.tolist() == expected.tolist()
    with pytest.raises(ArgumentError, match=r"shape \[4, 3\] in the queries and \[3, 4\]"):
        attribute(rows, swapped, curvature="identity")
    joint = Curvature("joint", {}, Joint(np.eye(12), {"w": (3, 4)}))
    for curvature in (fit("diagonal", lambda: iter([rows])), joint):
        assert curvature.solve_all(flat, 1.0)["w"].shape == (2, 12)
        with pytest.raises(ArgumentError, match=r"\[4, 3\]"):
            curvature.solve_all(swapped, 1.0)

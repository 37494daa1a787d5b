"""Statistics over lanes, against loops over what each lane logged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import sawlog
from sawlog import errors

STATISTICS = {
    "mean": np.mean, "std": np.std, "var": np.var, "sum": np.sum, "min": np.min, "max": np.max,
    "median": np.median, "count": len,
}  # fmt: skip


def program(seed):
    """Lanes log at different steps: every third, beginning with their own."""

    def body(x, i):
        sawlog.log({"some": x * 1.5, "ints": i + seed}, where=(i + seed) % 3 == 0, step=i)
        sawlog.log({"all": x}, step=i)
        own = seed + 10 * i  # no two lanes have the same
        sawlog.log({"apart": x}, where=i % 2 == 0, own=own, step=i)
        return x + seed + 1.0, None

    return lax.scan(body, 0.0, jnp.arange(7))[0]


def expected(key: str) -> dict[tuple, list[float]]:
    """For each step, what the lanes logged there; by a loop in Python."""
    found: dict[tuple, list[float]] = {}
    for seed in range(4):
        x = 0.0
        for i in range(7):
            if key == "all":
                found.setdefault((i,), []).append(x)
            if key == "some" and (i + seed) % 3 == 0:
                found.setdefault((i,), []).append(x * 1.5)
            if key == "ints" and (i + seed) % 3 == 0:
                found.setdefault((i,), []).append(i + seed)
            if key == "apart" and i % 2 == 0:
                found.setdefault((seed + 10 * i, i), []).append(x)
            x += seed + 1.0
    return found


@pytest.fixture(scope="module")
def logs():
    return sawlog.spool(jax.vmap(program))(jnp.arange(4))[1]


@pytest.fixture(scope="module")
def outer():
    return jax.vmap(sawlog.spool(program))(jnp.arange(4))[1]


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("where", ["logs", "outer"])
def test_statistics(name, where, request) -> None:
    found = getattr(request.getfixturevalue(where), name)(over="lanes")
    assert set(found) == {"some", "ints", "all", "apart"}
    for key in found:
        by_step = expected(key)
        axes = ["own", "step"] if key == "apart" else ["step"]
        steps = zip(*(found.steps[axis][key].tolist() for axis in axes), strict=True)
        rows = dict(zip(steps, found[key].tolist(), strict=True))
        assert set(rows) == set(by_step)
        for step, values in by_step.items():
            assert rows[step] == pytest.approx(STATISTICS[name](values), rel=1e-5), (key, step)


def test_quantiles(logs) -> None:
    found = logs.quantile([0.0, 0.25, 1.0], over="lanes")
    by_step = expected("some")
    assert found["some"].shape == (len(by_step), 3)
    for step, row in zip(found.step["some"].tolist(), found["some"], strict=True):
        np.testing.assert_allclose(row, np.quantile(by_step[(step,)], [0, 0.25, 1]), rtol=1e-5)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_one_name_in_two_numbers_of_lanes(sizes) -> None:
    def f(x):
        for size in sizes:
            jax.vmap(lambda x: sawlog.log({"x": x}) and None)(x[:size])

    logs = sawlog.spool(f)(jnp.arange(1.0, 4.0))[1]
    assert logs.mask["x"].tolist() == [[lane < size for lane in range(3)] for size in sizes]
    assert logs.sum()["x"].tolist() == [sum(range(1, size + 1)) for size in sizes]


def test_nan_that_was_logged_is_not_left_out() -> None:
    def f(x):
        sawlog.log({"x": x}, where=x != 1)

    logs = sawlog.spool(jax.vmap(f))(jnp.array([jnp.nan, 1.0, 3.0]))[1]
    assert np.isnan(logs.mean()["x"])
    assert np.isnan(logs.median()["x"])
    assert logs.count()["x"] == 2


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=4))
def test_steps_that_come_again_are_matched_in_order(lanes) -> None:
    """Any steps in any order, in any lane; the second time goes with the second time."""
    size = max(map(len, lanes))
    if not size:
        return
    mask = np.array([[i < len(lane) for lane in lanes] for i in range(size)])
    steps = np.array([[lane[i] if i < len(lane) else -1 for lane in lanes] for i in range(size)])
    values = np.arange(steps.size, dtype=float).reshape(steps.shape)
    from sawlog.jax._logdict.entries import LogdictPart, Slot

    slot = Slot("x", ("step",), True, 2, 1, masked=True)
    found = sawlog.logdict._of([LogdictPart(values, (steps,), mask, slot)]).sum()
    rows: dict = {}
    for lane, own in enumerate(lanes):
        for i, step in enumerate(own):
            row = rows.setdefault((step, own[:i].count(step)), [])
            row.append(values[i, lane])
    if all(len({lane[i] for lane in lanes if i < len(lane)}) == 1 for i in range(size)):
        return  # matched by their places
    assert found["x"].tolist() == [sum(rows[key]) for key in sorted(rows)]
    assert found.step["x"].tolist() == [step for step, _ in sorted(rows)]


def test_over_entries_is_a_reduction(logs) -> None:
    same = logs.mean(over="entries"), logs.reduce("mean")
    for key in ("some", "all"):
        np.testing.assert_array_equal(same[0][key], same[1][key])


@pytest.mark.parametrize("where", ["logs", "outer"])
def test_medians_over_entries(where, request) -> None:
    table = request.getfixturevalue(where)
    found = table.median(over="entries")["some"]
    for seed in range(4):
        x, own = 0.0, []
        for i in range(7):
            if (i + seed) % 3 == 0:
                own.append(x * 1.5)
            x += seed + 1.0
        assert found[seed] == pytest.approx(np.median(own))
    assert table.quantile([0.0, 1.0], over="entries")["all"].shape == (4, 2)


def test_columns_that_would_share_a_name_are_refused() -> None:
    for log in (
        lambda x: sawlog.log({"a": x, "b": x}, a=x),
        lambda x: sawlog.log({"lane": x}, step=x),
        lambda x: sawlog.log({"a": x}, lane=x),
        lambda x: sawlog.log({"a/b": x, "a": {"b": x}}),
    ):
        clash = sawlog.spool(jax.vmap(log))(jnp.arange(2.0))[1]
        with pytest.raises(errors.ArgumentError, match="Hint"):
            clash.to_pandas()


def test_mask_is_always_there(logs) -> None:
    assert set(logs.mask) == set(logs)
    assert logs.mask["all"].shape == (7, 4)
    assert bool(np.all(logs.mask["all"]))
    assert not bool(np.all(logs.mask["some"]))
    with pytest.raises(KeyError, match="'some'"):
        logs.mask["soms"]
    assert sawlog.spool(lambda x: sawlog.log({"x": x}) and None)(1.0)[1].mask["x"].shape == ()


def test_mask_of_a_name_that_no_lane_logged(tmp_path) -> None:
    def f(x):
        sawlog.log({"never": jnp.stack([x, x])}, where=x > 9)

    logs = sawlog.spool(jax.vmap(f))(jnp.arange(3.0))[1]
    sawlog.save(tmp_path / "run", logs)
    for found in (logs, logs + logs, logs.prefix(""), sawlog.load(tmp_path / "run")):
        assert found["never"].shape == (0, 3, 2)
        assert found.mask["never"].shape == (0, 3)


def test_statistics_of_a_single_entry_that_no_lane_logged() -> None:
    def f(x):
        sawlog.log({"x": x})
        sawlog.log({"never": jnp.stack([x, x])}, where=x > 99)

    logs = jax.vmap(sawlog.spool(f))(jnp.arange(21.0))[1]
    for found, x in [(logs.mean(), 10.0), (logs.count(), 21), (logs.quantile(0.5), 10.0)]:
        assert found["x"] == x
        assert found["never"].shape == (0, 2)
    logs = jax.vmap(sawlog.spool(lambda x: sawlog.log({"n": x}, where=x > 99)))(jnp.arange(21.0))[1]
    assert "21 lanes, none of which logged it" in repr(logs)


@pytest.mark.parametrize(
    "fun",
    [
        jnp.mean,
        lambda x: x.sum(0),
        lambda x: x.mean(1),
        lambda x: float(jnp.mean(x)),
        lambda x: x.mean(0).tolist(),
        lambda x: {"mean": x.mean()},
        lambda x: (x.mean(), x.std()),
        lambda x: f"{float(x.mean()):.2f}",
    ],
)
def test_a_map_that_averages_what_was_never_logged_is_refused(logs, fun) -> None:
    mapped = jax.tree.map(fun, logs)
    with pytest.raises(errors.LogMismatchError, match="never logged"):
        mapped["some"]


def test_a_map_in_a_program_is_refused_as_well(logs) -> None:
    with pytest.raises(errors.LogMismatchError, match="never logged"):
        jax.jit(lambda logs: jax.tree.map(jnp.mean, logs)["some"])(logs)


def test_a_map_over_whole_logs_is_fine(logs) -> None:
    assert jax.tree.map(jnp.shape, logs)["some"] == logs["some"].shape
    whole = logs.filter(lambda key, _: key == "all")
    assert float(jax.tree.map(jnp.mean, whole)["all"]) == pytest.approx(float(whole["all"].mean()))
    assert jax.tree.map(lambda x: x[-1], logs)["some"].shape == (4,)


def test_refusals(logs) -> None:
    single = sawlog.spool(program)(1)[1]
    with pytest.raises(errors.ArgumentError, match="no lanes"):
        single.mean(over="lanes")
    with pytest.raises(errors.ArgumentError, match="`over` must be one of"):
        logs.mean(over="seeds")
    with pytest.raises(errors.ArgumentError, match="outside of jit"):
        jax.jit(lambda s: sawlog.spool(jax.vmap(program))(s)[1].mean())(jnp.arange(4))
    with pytest.raises(errors.ArgumentError, match="from 0 to 1"):
        logs.quantile(1.5)


# -- tables and pictures ---------------------------------------------------------------------------


def test_pandas(logs) -> None:
    frame = logs.to_pandas()
    assert {"lane", "step", "own", "some", "ints", "all", "apart"} == set(frame.columns)
    both = frame[frame["own"].isna()] if frame["own"].isna().any() else frame
    assert len(both) == 7 * 4
    by_lane = both.groupby("step")["some"].mean()
    for (step,), values in expected("some").items():
        assert by_lane[step] == pytest.approx(np.mean(values))
    assert both["some"].notna().sum() == sum(map(len, expected("some").values()))


def test_polars_and_nested_names() -> None:
    def f(x):
        sawlog.log({"loss": {"policy": x, "value": [x, 2 * x]}, "image": jnp.ones((2, 2))}, step=0)

    table = sawlog.spool(jax.vmap(f))(jnp.arange(3.0))[1]
    frame = table.filter(lambda key, _: key == "loss").to_polars()
    assert frame.columns == ["lane", "step", "loss/policy", "loss/value/0", "loss/value/1"]
    assert frame["loss/value/1"].to_list() == [0.0, 2.0, 4.0]
    assert table.to_pandas()["image"][1].shape == (2, 2)


def test_plot(logs, tmp_path) -> None:
    figure = logs.plot(path=tmp_path / "curves.png")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["some", "ints", "all", "apart"]
    assert figure.axes[2].get_xlabel() == "step"
    np.testing.assert_allclose(
        figure.axes[2].lines[0].get_ydata(), np.mean(np.asarray(logs["all"]), axis=1)
    )
    assert (tmp_path / "curves.png").stat().st_size > 1000
    with pytest.raises(errors.ArgumentError, match="'nope'"):
        logs.plot(x="nope")


def test_repr_of_many_lanes() -> None:
    many = sawlog.spool(jax.vmap(program))(jnp.arange(64))[1]
    text = repr(many)
    assert "64 lanes" in text
    assert max(map(len, text.splitlines())) < 400


def test_steps_in_tables_are_exact_integers_although_other_logs_have_none() -> None:
    step = 2**53 + 1
    with jax.enable_x64(True):
        logs = sawlog.spool(lambda x: (sawlog.log({"a": x}, n=step), sawlog.log({"b": x}))[0])(1.0)[
            1
        ]
        frame, table = logs.to_pandas(), logs.to_polars()
    assert frame["n"].tolist()[0] == step
    assert frame["n"].isna().tolist() == [False, True]
    assert table["n"].to_list() == [step, None]


@pytest.mark.parametrize("outside", [0, 1, 2])
def test_lanes_of_what_flows_back(outside: int) -> None:
    """Each mapped axis is one of lanes, whether the gradient is taken outside or inside of it."""

    def fun(x, weight):
        return weight * sawlog.log_cotangent("dy", x + 0 * weight)

    for level in range(3):
        if level == outside:
            fun = jax.grad(lambda x, weights, fun=fun: fun(x, weights).sum())
        if level < 2:
            fun = jax.vmap(fun, (None, 0))
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    _, logs = sawlog.spool(fun)(2.0, weights)
    np.testing.assert_array_equal(logs["dy"], weights)
    assert logs.mean()["dy"] == 2.5
    assert logs.entries()["dy"].shape == (1, 2, 3)


@pytest.mark.parametrize("steps", [[9, 5, 7], [5, 7, 9]])
def test_entries_stay_in_the_order_of_the_program_where_some_lanes_do_not_log(steps) -> None:
    def f(lane):
        for number, step in enumerate(steps):
            sawlog.log({"x": lane + number}, where=lane != number, step=step)

    _, logs = sawlog.spool(jax.vmap(f))(jnp.arange(3.0))
    found = logs.mean(over="lanes")
    assert found.step["x"].tolist() == steps
    lanes = np.arange(3.0)
    assert found["x"].tolist() == [np.mean(lanes[lanes != n] + n) for n in range(3)]


@pytest.mark.parametrize(
    ("dtype", "mean", "std"),
    [
        (np.float32, np.float32, np.float32),
        (np.complex64, np.complex64, np.float32),
        (np.int32, np.float32, np.float32),
        (np.float64, np.float64, np.float64),
        (np.complex128, np.complex128, np.float64),
    ],
)
def test_statistics_have_64_bits_where_the_logs_have(dtype, mean, std) -> None:
    with jax.enable_x64(True):
        logged = jnp.asarray(np.arange(6).reshape(2, 3), dtype)
        _, logs = sawlog.spool(jax.vmap(lambda x: sawlog.log({"x": x})))(logged)
        assert logs.mean(over="lanes")["x"].dtype == mean
        assert logs.std(over="lanes")["x"].dtype == std


@pytest.mark.parametrize("dtype", [np.int32, np.int16, np.uint32, bool])
def test_sums_of_integers_over_lanes_are_exact(dtype) -> None:
    most = np.iinfo(dtype).max if dtype is not bool else 1
    logged = np.array([most, most, 1], dtype)
    _, logs = sawlog.spool(jax.vmap(lambda x: sawlog.log({"x": x})))(jnp.asarray(logged))
    found = logs.sum(over="lanes")["x"]
    assert found.dtype.kind in "iu"
    assert int(found) == 2 * int(most) + 1

"""What real trackers have on disk after our sinks wrote to them, read by their own tools."""

import sys
import threading
import tomllib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from sawlog.errors import (
    LogMismatchError,
    LogValueError,
    MissingPackageError,
    StoreClosedError,
)
from sawlog.records import Entries, Records
from tests.sinks._trackers import (
    ALL,
    INSTALLED,
    SINKS,
    Wandb,
)
from tests.thorough import often

from .tracker_helpers import records, written

pytestmark = pytest.mark.usefixtures("tracker_folder")

RUNS, STEPS, CHUNK = often(3, 8), 600, 100  # 1,200 numbers a run, more than MLflow takes at a time


def in_dev_extra(project):
    """The trackers that a development set-up has."""
    wanted = project["optional-dependencies"]["dev"]
    return {each for each in SINKS for line in wanted if each in line}


def test_trackers_of_the_dev_extra_are_tested():
    file = Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    assert in_dev_extra(project) <= {each.package for each in INSTALLED}
    assert in_dev_extra({"optional-dependencies": {"dev": ["sawlog[jax,wandb]"]}}) == {"wandb"}
    assert {each.package for each in ALL} == set(SINKS) <= set(project["optional-dependencies"])


# -- several runs at once --------------------------------------------------------------------------


def series(run):
    """Numbers that need all their bits."""
    random = np.random.default_rng(run)
    return random.normal(size=STEPS), random.normal(size=STEPS).astype(np.float32)


def written_at_once(tracker):
    """What the tracker has of runs that were written to at once, from a thread each."""
    sinks = [tracker.open(f"seed-{i}", config={"seed": i, "net": {"w": "x"}}) for i in range(RUNS)]
    start = threading.Barrier(RUNS)

    def work(i):
        loss, accuracy = series(i)
        start.wait()
        for at in range(0, STEPS, CHUNK):
            part = slice(at, at + CHUNK)
            steps = {"step": np.arange(STEPS)[part]}
            sinks[i].write(records(steps, loss=loss[part], accuracy=accuracy[part]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(RUNS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sink in sinks:
        sink.close()
    return tracker.read_all(sinks)


# -- what kinds of values become -------------------------------------------------------------------


@pytest.fixture(scope="module")
def kinds(tracker):
    image = np.array([[0, 100, 255], [1, 2, 3]], np.uint8)
    color = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3)
    ramp = np.linspace(-1, 1, 6).reshape(2, 3)
    steps = {"step": np.array([3, 5])}
    values = {
        "count": np.array([2**40 + 1, -7]),
        "flag": np.array([True, False]),
        "half": np.array([0.1, 3.0]).astype(ml_dtypes.bfloat16),
        "z": np.array([1 + 2j, 3 - 4j]),
        "odd": np.array([np.nan, 1.5]),
        "huge": np.array([np.inf, -np.inf]),
        "weights": np.array([[0.0, 1.0, 4.0], [np.nan, 2.0, np.inf]]),
        "deep": np.arange(16.0).reshape(2, 2, 2, 2),
        "image": np.stack([image, image + 1]),
        "color": np.stack([color, color + 1]),
        "ramp": np.stack([ramp, ramp * 5]),
        "empty": np.zeros((2, 0)),
    }
    part = np.array([[True, False], [True, True]])
    masked = {
        "some": Entries(np.array([1.0, 2.0]), steps, np.array([False, True])),
        "none": Entries(np.array([1.0, 2.0]), steps, np.array([False, False])),
        "part": Entries(np.array([[1.0, 2.0], [3.0, 4.0]]), steps, part),
    }
    return written(tracker, Records({**records(steps, **values), **masked}))


# -- what is read back ----------------------------------------------------------------------------


class TestReadBack:
    """Each test once for each tracker that is installed."""

    __test__ = bool(INSTALLED)

    @pytest.mark.thorough
    def test_runs_at_once_have_every_value_in_order_and_their_own_config(self, tracker):
        found = written_at_once(tracker)
        assert [seen.name for seen in found] == [f"seed-{i}" for i in range(RUNS)]
        for i, seen in enumerate(found):
            loss, accuracy = series(i)
            scalars = {name: seen.scalars[name] for name in seen.scalars if name != "step"}
            assert scalars == {
                "loss": list(enumerate(loss.tolist())),
                "accuracy": list(enumerate(accuracy.astype(float).tolist())),
            }
            assert str(seen.config["seed"]) == str(i)
            assert (seen.config.get("net/w") or seen.config["net"]["w"]) == "x"
            assert not seen.failed

    def test_scalars_are_exact(self, kinds):
        found = {name: kinds.scalars[name] for name in kinds.scalars}
        assert found["count"] == [(3, 2.0**40 + 1), (5, -7.0)]
        assert found["flag"] == [(3, 1.0), (5, 0.0)]
        assert found["half"] == [(3, float(ml_dtypes.bfloat16(0.1))), (5, 3.0)]
        assert found["z/real"] == [(3, 1.0), (5, 3.0)]
        assert found["z/imag"] == [(3, 2.0), (5, -4.0)]

    def test_nan_and_infinities_are_what_the_tracker_has(self, kinds, tracker):
        if tracker.package == "neptune":
            assert kinds.scalars["odd"] == [(5, 1.5)]
            ((step, nan),) = kinds.scalars["nonfinite/odd"]
            assert step == 3
            assert np.isnan(nan)
            assert kinds.scalars["nonfinite/huge"] == [(3, np.inf), (5, -np.inf)]
            return
        (first, nan), second = kinds.scalars["odd"]
        assert np.isnan(nan)
        assert (first, second) == (3, (5, 1.5))
        most = np.inf if tracker.has_infinities else np.finfo(float).max
        assert [step for step, _ in kinds.scalars["huge"]] == [3, 5]
        low, high = (value for _, value in kinds.scalars["huge"])
        assert (low, high) == pytest.approx((most, -most))

    def test_arrays_are_histograms(self, kinds, tracker):
        if not tracker.has_histograms:
            assert kinds.scalars["weights/mean"][0] == (3, pytest.approx(5 / 3))
            assert kinds.scalars["weights/min"][0] == (3, 0.0)
            assert kinds.scalars["deep/max"] == [(3, 7.0), (5, 15.0)]
            assert kinds.scalars["part/max"] == [(3, 1.0), (5, 4.0)]
            return
        assert set(kinds.histograms) == {"weights", "deep", "part"}
        (first, (counts, edges)), (second, (finite, _)) = kinds.histograms["weights"]
        assert (first, second) == (3, 5)
        assert (sum(counts), counts[0], counts[16], counts[-1]) == (3, 1, 1, 1)
        assert (edges[0], edges[-1], len(edges)) == (0.0, 4.0, len(counts) + 1)
        assert sum(finite) == 1
        assert [(step, sum(c)) for step, (c, _) in kinds.histograms["deep"]] == [(3, 8), (5, 8)]
        assert [(step, sum(c)) for step, (c, _) in kinds.histograms["part"]] == [(3, 1), (5, 2)]

    def test_arrays_of_two_and_three_axes_are_images(self, kinds):
        assert set(kinds.images) == {"image", "color", "ramp"}
        for name, array in kinds.images.items():
            assert [step for step, _ in array] == [3, 5], name
        gray = np.array([[0, 100, 255], [1, 2, 3]], np.uint8)
        for (_, found), expected in zip(kinds.images["image"], (gray, gray + 1), strict=True):
            shown = found[..., 0] if found.ndim == 3 else found  # Trackio makes all images RGBA
            assert np.array_equal(shown, expected)
        color = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
        assert np.array_equal(kinds.images["color"][0][1][..., :3], color)
        ramps = [found[..., 0] if found.ndim == 3 else found for _, found in kinds.images["ramp"]]
        assert np.array_equal(ramps[0].ravel(), [0, 51, 102, 153, 204, 255])
        assert np.array_equal(ramps[0], ramps[1])

    def test_what_is_masked_or_empty_is_left_out(self, kinds):
        assert kinds.scalars["some"] == [(5, 2.0)]
        for name in ("none", "empty"):
            assert not [each for each in kinds.scalars if each.startswith(name)]
            assert name not in kinds.histograms

    def test_images_and_histograms_can_be_left_out(self, tracker):
        values = records({"step": [0]}, a=np.ones((1, 4)), b=np.ones((1, 2, 2)), c=np.ones(1))
        seen = written(tracker, values, images=False)
        assert not seen.images
        if tracker.has_histograms:
            assert set(seen.histograms) == {"a", "b"}
        seen = written(tracker, values, histograms=False)
        assert not seen.histograms
        assert set(seen.images) == {"b"}
        assert set(seen.scalars) - {"step"} == {"c"}

    def test_steps_are_named_step_or_the_only_axis_or_counted(self, tracker):
        seen = written(
            tracker,
            records({"step": [7, 9], "epoch": [0, 1]}, both=[1.0, 2.0]),
            records({"epoch": [4, 2]}, only=[1.0, 2.0]),
        )
        assert seen.scalars["both"] == [(7, 1.0), (9, 2.0)]
        assert seen.scalars["epoch"][:2] == [(7, 0.0), (9, 1.0)]
        assert seen.scalars["only"] == [(4, 1.0), (2, 2.0)]

    def test_without_a_whole_step_entries_are_counted(self, tracker):
        if isinstance(tracker, Wandb):
            seen = written(tracker, records({}, a=[5.0, 6.0]), records({}, a=[7.0]))
            assert seen.scalars == {"a": [(0, 5.0), (1, 6.0), (2, 7.0)]}
            return
        seen = written(
            tracker,
            records({}, a=[5.0, 6.0]),
            records({"x": [0.5, 1.5]}, half=[1.0, 2.0]),
            records({}, a=[7.0], b=[8.0]),
            records({"x": [3, 4], "y": [5, 6]}, two=[1.0, 2.0]),
        )
        assert seen.scalars["a"] == [(0, 5.0), (1, 6.0), (2, 7.0)]
        assert seen.scalars["b"] == [(0, 8.0)]
        assert seen.scalars["half"] == [(0, 1.0), (1, 2.0)]
        assert seen.scalars["two"] == [(3, 1.0), (4, 2.0)]  # over the first of its axes
        assert seen.scalars["x"] == [(0, 0.5), (1, 1.5)]
        assert seen.scalars["y"] == [(3, 5.0), (4, 6.0)]

    def test_the_x_axis_can_be_chosen(self, tracker):
        both = records({"minibatch": [0, 1], "epoch": [7, 9]}, both=[1.0, 2.0])
        seen = written(tracker, both, x="epoch")
        if isinstance(tracker, Wandb):
            assert seen.definitions["both"]["step_metric"] == "epoch"
        assert seen.scalars["both"] == [(7, 1.0), (9, 2.0)]
        assert seen.scalars["minibatch"] == [(7, 0.0), (9, 1.0)]

    def test_nested_values_have_names_like_paths(self, tracker):
        attrs = {"logdict": {"key": "loss"}}
        entries = Entries(np.array([1.0]), {"step": np.array([3])}, attrs=attrs)
        seen = written(tracker, Records({"loss['policy'][0]": entries}))
        assert seen.scalars["loss/policy/0"] == [(3, 1.0)]

    def test_equal_entries_and_steps_that_go_back_stay_in_order(self, tracker):
        values = [3.0, 3.0, 1.0, 2.0, 2.0]
        seen = written(
            tracker,
            records({"step": [5, 5, 5, 4, 4]}, x=values),
            records({"step": [4, 4]}, x=[2.0, 0.0]),
        )
        assert [value for _, value in seen.scalars["x"]] == [*values, 2.0, 0.0]
        assert [step for step, _ in seen.scalars["x"]] == [5, 5, 5, 4, 4, 4, 4]

    def test_names_of_leaves_are_kept_or_cleaned(self, tracker):
        seen = written(tracker, records({"step": [1]}, **{"params['w'][0].b": [1.0], "x@y": [2.0]}))
        names = (
            {"params/w/0.b", "x_y"} if tracker.package == "mlflow" else {"params['w'][0].b", "x@y"}
        )
        assert set(seen.scalars) - {"step"} == names

    def test_a_failed_run_is_marked(self, tracker):
        seen = written(tracker, records({"step": [1]}, x=[1.0]), failed=True)
        assert seen.failed or tracker.package == "tensorboard"
        sink = tracker.open("raised")

        def program():
            with sink:
                sink.write(records({"step": [1]}, x=[1.0]))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            program()
        seen = tracker.read(sink)
        assert seen.scalars["x"] == [(1, 1.0)]
        assert seen.failed or tracker.package == "tensorboard"

    def test_a_closed_sink_refuses_and_a_refused_write_leaves_nothing(self, tracker):
        sink = tracker.open("refusing")
        with pytest.raises(LogValueError, match="'text' is of the dtype <U1"):
            sink.write(records({"step": [0]}, x=[1.0], text=["a"]))
        with pytest.raises(
            LogMismatchError, match="'step' is the name of a value and of a step axis"
        ):
            sink.write(records({"step": [0]}, x=[1.0], step=[2.0]))
        sink.write(records({"step": [0]}, y=[1.0], step=[0]))
        sink.flush()
        sink.close()
        sink.close()
        with pytest.raises(StoreClosedError, match="is closed"):
            sink.write(records({"step": [0]}, x=[1.0]))
        assert "x" not in tracker.read(sink).scalars


@pytest.mark.parametrize("extra", SINKS)
def test_a_missing_package_is_named(extra, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, extra, None)
    sink = SINKS[extra]
    with pytest.raises(MissingPackageError) as caught:
        sink(str(tmp_path))
    assert str(caught.value) == (
        f"{sink.__name__} needs the package '{extra}', which is not installed. "
        f'Hint: pip install "sawlog[{extra}]"'
    )

"""Sinks of trackers keep the contract of all sinks, and what is particular to each."""

import threading

import numpy as np
import pytest

from sawlog.errors import (
    LogMismatchError,
    StoreWriteError,
)
from sawlog.records import Entries, Records
from sawlog.sinks import _values, _wandb_file
from sawlog.testing import SinkContract
from tests.sinks._trackers import (
    INSTALLED,
    MLflow,
    Neptune,
    Tracker,
    Trackio,
    Wandb,
    imported_quietly,
)

from .tracker_helpers import numbers, records, written

pytestmark = pytest.mark.usefixtures("tracker_folder")


class TrackerContract(SinkContract):
    """That of all sinks, but for what trackers have no place for."""

    kind: type[Tracker]
    test_arrays_arrive = None  # as histograms and images, see above
    test_resuming = None  # a run of a tracker begins anew

    @pytest.fixture(autouse=True)
    def opened(self, tracker_folder):
        imported_quietly(self.kind)
        folder = tracker_folder / f"contract-{self.kind.package}"
        folder.mkdir(exist_ok=True)
        self.tracker = self.kind(folder)

    def make(self, path):
        return self.tracker.open(f"run-{next(numbers)}")

    def read(self, sink, path):
        found = self.tracker.read(sink).scalars
        axes = {"acc": "epoch"}
        return {
            name: [({axes.get(name, "step"): step}, value) for step, value in pairs]
            for name, pairs in found.items()
            if name not in ("step", "epoch")  # which W&B has as metrics
        }


UNABLE = {
    Wandb: {"test_flush_is_enough": None},  # its file is whole when it is closed
    MLflow: {"test_not_a_number": None},  # see above
    Neptune: {"test_not_a_number": None},
}
for _each in INSTALLED:
    _name = f"Test{_each.__name__}Contract"
    globals()[_name] = type(_name, (TrackerContract,), {"kind": _each, **UNABLE.get(_each, {})})


# -- single trackers -------------------------------------------------------------------------------


class TestWandb:
    __test__ = Wandb in INSTALLED

    def test_knows_the_step_of_each_metric(self, tmp_path):
        steps = {"step": [1, 2], "epoch": [0, 0]}
        seen = written(Wandb(tmp_path), records(steps, loss=[1.0, 2.0]))
        defined = {name: about.get("step_metric") for name, about in seen.definitions.items()}
        assert defined == {"loss": "step", "epoch": "step"}
        assert seen.scalars["step"] == [(1, 1.0), (2, 2.0)]

    @pytest.mark.parametrize("rows", [1, pytest.param(3000, marks=pytest.mark.thorough)])
    def test_close_waits_for_the_end_of_the_file(self, tmp_path, monkeypatch, rows):
        """W&B's own process closes the file when it gets to it, and nobody is told."""
        tracker = Wandb(tmp_path)
        imported_quietly(Wandb)
        sink = tracker.open("slow")
        late = told_late(monkeypatch)
        sink.write(records({"step": np.arange(rows)}, x=np.arange(rows) / 4))
        sink.close()
        assert tracker.read(sink).scalars["x"] == [(i, i / 4) for i in range(rows)]
        (timer,) = late
        timer.join()
        assert _wandb_file.has_ended(sink.run.settings.sync_file)

    def test_says_so_when_the_end_does_not_come(self, tmp_path, monkeypatch):
        imported_quietly(Wandb)
        sink = Wandb(tmp_path).open("never")
        sink.write(records({"step": [0]}, x=[1.0]))
        with monkeypatch.context() as patch:
            patch.setattr("sawlog.sinks._wandb.PATIENCE", 0.0)
            patch.setattr("sawlog.sinks._wandb.has_ended", lambda file: False)
            with pytest.raises(StoreWriteError, match=r"did not write the end of .*\.wandb within"):
                sink.close()
        sink.close()  # once more, as the end is there


def told_late(monkeypatch):
    """Have W&B's own process told late that a run is finished; by these timers."""
    from wandb.sdk.lib.service.service_connection import ServiceConnection

    real, timers = ServiceConnection.inform_finish, []

    def inform_finish(self, run_id):
        timers.append(threading.Timer(0.3, real, (self, run_id)))
        timers[-1].start()

    monkeypatch.setattr(ServiceConnection, "inform_finish", inform_finish)
    return timers


class TestMLflow:
    __test__ = MLflow in INSTALLED

    @pytest.fixture
    def mlflow(self, tmp_path):
        imported_quietly(MLflow)
        return MLflow(tmp_path)

    def test_a_run_is_continued(self, mlflow):
        first = mlflow.open("again", config={"lr": 0.1})
        first.write(Records({"loss": Entries(np.array([2.0]), {"step": np.array([0])})}))
        first.close()
        second = mlflow.open("other", run_id=first.run_id, config={"lr": 0.2})
        second.write(Records({"loss": Entries(np.array([1.0]), {"step": np.array([1])})}))
        second.close()
        seen = mlflow.read(second)
        assert (seen.name, seen.config, seen.failed) == ("again", {"lr": "0.1"}, False)
        assert seen.scalars["loss"] == [(0, 2.0), (1, 1.0)]

    def test_is_sent_a_thousand_at_a_time_and_again_after_a_failure(self, mlflow, monkeypatch):
        sink = mlflow.open("batches")
        real, sizes = sink._client.log_batch, []

        def log_batch(run, metrics=(), **rest):
            sizes.append(len(metrics))
            if len(sizes) == 2:
                raise OSError("no network")
            real(run, metrics=metrics, **rest)

        monkeypatch.setattr(sink._client, "log_batch", log_batch)
        sink.write(records({"step": [0]}, x=[0.0]))
        sink.write(records({"step": np.arange(1, 2499)}, x=np.arange(1.0, 2499)))
        assert sizes == []
        last = records({"step": [2499]}, x=[2499.0])
        with pytest.raises(OSError, match="no network"):
            sink.write(last)
        sink.write(last)
        assert sizes == [1000, 1000, 1000, 499]
        sink.close()
        assert sizes == [1000, 1000, 1000, 499, 1]
        assert mlflow.read(sink).scalars["x"] == [(i, float(i)) for i in range(2500)]

    def test_refuses_names_that_would_be_one(self, mlflow):
        with mlflow.open("clash") as sink, pytest.raises(LogMismatchError, match="both be called"):
            sink.write(records({}, **{"a['b']": [1.0], "a/b": [2.0]}))


class TestTrackio:
    __test__ = Trackio in INSTALLED

    def test_says_so_when_rows_were_lost(self, tmp_path, monkeypatch):
        sink = Trackio(tmp_path).open("lost")
        monkeypatch.setattr("sawlog.sinks._trackio.PATIENCE", 0.0)
        sink._rows = 1
        with pytest.raises(StoreWriteError, match="1 of 1 rows are not in Trackio's database"):
            sink.close()
        sink._rows = 0
        sink.close()


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [[1e16, 1e16 + 2], [-1e308, 1e308], [5e-324, 0.0], [1e300, 1e300], [0.0], [np.nan, 1.0]],
)
def test_every_finite_element_is_in_a_bin(values):
    counts, edges = _values.bins(np.array(values))
    assert counts.sum() == np.isfinite(values).sum()
    assert len(edges) == len(counts) + 1


def test_nothing_finite_has_no_bins():
    assert _values.bins(np.array([np.nan, np.inf])) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.0, 0.5, 1.0]], [[0, 128, 255]]),
        ([[True, False]], [[255, 0]]),
        ([[-1e308, 1e308]], [[0, 255]]),
        ([[7, 7]], [[255, 255]]),
        ([[np.nan, -2.0, 2.0]], [[0, 0, 255]]),
        ([[np.inf, np.nan]], [[0, 0]]),
        ([[[0.0], [1.0]]], [[0, 255]]),
    ],
)
def test_pixels(values, expected):
    found = _values.pixels(np.array(values))
    assert found.dtype == np.uint8
    assert found.tolist() == expected


def test_steps_with_more_axes_are_those_that_were_logged():
    mask = np.array([[False, True], [True, True]])
    entries = Entries(np.ones((2, 2)), {"step": np.array([[1, 2], [3, 4]])}, mask)
    (group,) = _values.groups(Records({"x": entries}), {}, images=True, histograms=True)
    assert group.steps == [2, 3]
    assert [item.tolist() for item in group.columns["x"].items] == [[1.0], [1.0, 1.0]]

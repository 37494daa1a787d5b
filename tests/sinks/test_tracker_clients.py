"""What sinks tell the clients of trackers, which are stand-ins here that write down their calls."""

from types import SimpleNamespace

import numpy as np
import pytest

from sawlog.sinks import _neptune, _wandb
from sawlog.sinks._neptune import NeptuneSink
from sawlog.sinks._wandb import WandbSink

from .tracker_helpers import records


class Field:
    """A field of a run of Neptune."""

    def __init__(self):
        self.series, self.calls = [], []

    def extend(self, items, steps):
        self.calls.append(len(items))
        self.series += zip(items, steps, strict=True)

    def append(self, item, step):
        self.series.append((item, step))


class NeptuneRun(dict):
    """A run of Neptune: fields by path."""

    def __missing__(self, path):
        self[path] = Field()
        return self[path]


@pytest.fixture
def neptune(monkeypatch):
    """Opens a sink, and returns it with its run."""

    def opened(**options):
        run = NeptuneRun()
        modules = {
            "neptune": SimpleNamespace(init_run=lambda **kwargs: run),
            "neptune.types": SimpleNamespace(File=SimpleNamespace(as_image=lambda array: array)),
        }
        monkeypatch.setattr(_neptune, "require", lambda name, *_: modules[name])
        return NeptuneSink("project", **options), run

    return opened


class TestNeptune:
    def test_what_is_not_finite_has_its_own_step(self, neptune):
        sink, run = neptune()
        sink.write(records({"step": [7, 3, 9, 3]}, x=[1.0, np.nan, np.inf, 2.0]))
        assert run["x"].series == [(1.0, 7), (2.0, 3)]
        assert run["nonfinite/x"].series == [("nan", 3), ("inf", 9)]

    @pytest.mark.parametrize("count", [1, 3, 4, 7])
    def test_batches_are_no_larger_than_allowed_and_nothing_is_lost(
        self, neptune, monkeypatch, count
    ):
        monkeypatch.setattr(_neptune, "BATCH", 3)
        sink, run = neptune()
        sink.write(records({"step": np.arange(count)}, x=np.arange(count) / 4))
        assert run["x"].series == [(i / 4, i) for i in range(count)]
        assert max(run["x"].calls) <= 3

    def test_settings_that_it_would_refuse_are_texts(self, neptune):
        fits = {"most": 2**31 - 1, "no": False, "half": 0.5, "name": "a"}
        not_so = {"more": 2**31, "less": -(2**31), "nan": np.nan, "list": [1]}
        _, run = neptune(config={**fits, **not_so})
        assert dict(run) == {
            **{f"parameters/{key}": value for key, value in fits.items()},
            **{f"parameters/{key}": str(value) for key, value in not_so.items()},
        }

    def test_images_are_from_0_to_1(self, neptune):
        sink, run = neptune()
        sink.write(records({"step": [4]}, x=np.array([[[0, 51, 255]]], np.uint8)))
        ((image, step),) = run["x"].series
        assert step == 4
        assert image.tolist() == [[0.0, 0.2, 1.0]]


class WandbRun:
    """A run of W&B."""

    def __init__(self, options):
        self.options, self.rows, self.defined = options, [], []

    def log(self, row):
        self.rows.append(row)

    def define_metric(self, name, *, step_metric, step_sync):
        self.defined.append((name, step_metric))


@pytest.fixture
def wandb(monkeypatch):
    """Opens a sink, and returns it with its run."""
    module = SimpleNamespace(
        Settings=lambda **options: options,
        Histogram=lambda np_histogram: np_histogram[0].sum(),
        init=lambda **options: WandbRun(options),
    )
    monkeypatch.setattr(_wandb, "require", lambda *names: module)

    def opened(**options):
        sink = WandbSink("project", **options)
        return sink, sink.run

    return opened


class TestWandb:
    def test_every_sink_has_a_run_of_its_own_unless_it_is_told_otherwise(self, wandb):
        """By default W&B gives back the run that is open."""
        assert wandb()[1].options["reinit"] == "create_new"
        assert wandb(reinit="finish_previous")[1].options["reinit"] == "finish_previous"

    def test_an_array_with_nothing_finite_is_left_out_of_its_row(self, wandb):
        sink, run = wandb()
        arrays = np.array([[1.0, np.nan, 2.0], [np.nan, np.inf, -np.inf], [1.0, 2.0, 3.0]])
        sink.write(records({"step": [5, 6, 7]}, x=arrays, loss=[0.5, 0.25, 0.125]))
        assert run.rows == [
            {"step": 5, "x": 2, "loss": 0.5},
            {"step": 6, "loss": 0.25},
            {"step": 7, "x": 3, "loss": 0.125},
        ]

    def test_each_axis_of_a_name_is_defined_once(self, wandb):
        sink, run = wandb()
        for number in range(3):
            sink.write(records({"step": [number]}, loss=[1.0]))
            sink.write(records({"epoch": [number]}, loss=[1.0], accuracy=[2.0]))
        pairs = [("loss", "step"), ("loss", "epoch"), ("accuracy", "epoch")]
        assert run.defined == pairs

    def test_wildcards_are_not_defined(self, wandb):
        sink, run = wandb()
        sink.write(records({"step": [0]}, **{"loss*": [1.0], "loss": [2.0]}))
        assert run.defined == [("loss", "step")]
        assert run.rows == [{"step": 0, "loss*": 1.0, "loss": 2.0}]

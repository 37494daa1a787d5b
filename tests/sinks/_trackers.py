"""How each tracker is opened in tests, and what its own tools read of the files it wrote."""

import base64
import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import os
import sqlite3
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog.sinks._mlflow import MLflowSink
from sawlog.sinks._neptune import NeptuneSink
from sawlog.sinks._tensorboard import TensorBoardSink
from sawlog.sinks._tracker import TrackerSink
from sawlog.sinks._trackio import TrackioSink
from sawlog.sinks._wandb import WandbSink

#: Nothing goes to the network, and nothing to the user's own folders.
ENVIRONMENT = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_OFFLINE": "1",
}
FOLDERS = {
    "WANDB_CONFIG_DIR": "wandb-config",
    "WANDB_CACHE_DIR": "wandb-cache",
    "WANDB_DATA_DIR": "wandb-data",
    "TRACKIO_DIR": "trackio",
    "NEPTUNE_DATA_DIRECTORY": "neptune",
}


@contextlib.contextmanager
def writing_below(folder: Path) -> Iterator[Path]:
    """Trackers write below this folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        for name, value in FOLDERS.items():
            patch.setenv(name, str(folder / value))
        yield folder


@dataclasses.dataclass
class Seen:
    """What a tracker has of one run: pairs of step and value by name."""

    name: str
    config: Mapping[str, Any]
    failed: bool | None
    scalars: dict[str, list[tuple[int, float]]] = dataclasses.field(default_factory=dict)
    histograms: dict[str, list[tuple[int, Any]]] = dataclasses.field(default_factory=dict)
    images: dict[str, list[tuple[int, np.ndarray]]] = dataclasses.field(default_factory=dict)


class Tracker:
    """One tracker; `package` is what it is imported as, and the extra of sawlog."""

    package: str
    modules: tuple[str, ...] = ()
    has_histograms = True
    has_status = True
    has_infinities = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, name: str, **options: Any) -> TrackerSink:
        raise NotImplementedError

    def read(self, sink: TrackerSink) -> Seen:
        raise NotImplementedError

    def read_all(self, sinks: list[TrackerSink]) -> list[Seen]:
        return [self.read(sink) for sink in sinks]


def _pixels(data: Any) -> np.ndarray:
    from PIL import Image

    with Image.open(data) as image:
        return np.asarray(image)


class Wandb(Tracker):
    package = "wandb"

    def open(self, name: str, **options: Any) -> WandbSink:
        import wandb

        quick = wandb.Settings(  # what W&B finds out about the machine takes most of the time
            console="off",
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
        )
        where = {"dir": self.folder, "mode": "offline", "settings": quick}
        return WandbSink("tests", name, **where, **options)

    def read(self, sink: Any) -> Seen:
        return self.read_all([sink])[0]

    def read_all(self, sinks: list[Any]) -> list[Seen]:
        files = [Path(sink.run.settings.sync_file) for sink in sinks]
        from wandb.util import get_core_path

        # What `wandb leet inspect --json FILE` runs, which takes most of a second to begin.
        command = [get_core_path(), "leet", "inspect", "--no-observability", "--json"]
        reading = [
            subprocess.Popen([*command, "--run-file", file], stdout=subprocess.PIPE, text=True)
            for file in files
        ]
        texts = [process.communicate()[0] for process in reading]
        assert [process.returncode for process in reading] == [0] * len(files)
        return [
            self._seen(file, [json.loads(line) for line in text.splitlines()])
            for file, text in zip(files, texts, strict=True)
        ]

    def _seen(self, file: Path, lines: list[Any]) -> Seen:
        (run,) = [line["run"] for line in lines if line["type"] == "run"]
        (end,) = [line["exit"] for line in lines if line["type"] == "exit"]
        config = {k: v for k, v in run["config"]["update"].items() if k != "_wandb"}
        seen = Seen(run["display_name"], config, bool(end.get("exit_code", 0)))
        seen.definitions = {  # type: ignore[attr-defined]
            m["metric"]["name"]: m["metric"] for m in lines if m["type"] == "metric"
        }
        for line in lines:
            if line["type"] == "history":
                self._row(file.parent / "files", line["history"]["item"], seen)
        return seen

    def _row(self, files: Path, row: dict[str, Any], seen: Seen) -> None:
        step = row.get("step", row.get("epoch", row["_step"]))
        for name, value in row.items():
            if name in ("_step", "_runtime", "_timestamp"):
                continue
            if name.endswith("._type"):
                name = name.removesuffix("._type")
                if value == "histogram":
                    counted = row[f"{name}.values"], row[f"{name}.bins"]
                    seen.histograms.setdefault(name, []).append((step, counted))
                else:
                    image = _pixels(files / row[f"{name}.path"])
                    seen.images.setdefault(name, []).append((step, image))
            elif name.rpartition(".")[0] + "._type" not in row:
                seen.scalars.setdefault(name, []).append((step, float(value)))


class TensorBoard(Tracker):
    package = "tensorboard"
    has_status = False

    def open(self, name: str, **options: Any) -> TensorBoardSink:
        return TensorBoardSink(self.folder / name, **options)

    def read(self, sink: Any) -> Seen:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray

        events = EventAccumulator(sink.path, size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        seen = Seen(Path(sink.path).name, {}, None)
        for tag in events.Tags()["scalars"]:
            seen.scalars[tag] = [(e.step, e.value) for e in events.Scalars(tag)]
        for tag in events.Tags()["tensors"]:
            plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
            found = [(e.step, make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
            if plugin == "scalars":
                seen.scalars[tag] = [(step, array.item()) for step, array in found]
            elif plugin == "histograms":
                seen.histograms[tag] = [
                    (step, (a[:, 2].tolist(), [*a[:, 0], a[-1, 1]])) for step, a in found
                ]
            elif plugin == "images":
                seen.images[tag] = [(step, _pixels(io.BytesIO(a[2]))) for step, a in found]
            else:
                assert plugin == "text"
                text = found[0][1][0].decode().removeprefix("```json").removesuffix("```")
                seen.config = json.loads(text)
        return seen


@functools.cache
def _empty_database() -> bytes:
    """MLflow's file without any run, which takes it two seconds to create."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
        assert os.listdir(folder) == ["mlflow.db"]
        return Path(folder, "mlflow.db").read_bytes()


def mlflow_database(folder: Path) -> str:
    """The address of a database in a folder."""
    path = folder / "mlflow.db"
    if not path.exists():
        path.write_bytes(_empty_database())
    return f"sqlite:///{path}"


class MLflow(Tracker):
    package = "mlflow"
    modules = ("mlflow.store.tracking.sqlalchemy_store",)
    has_histograms = False
    has_infinities = False

    @property
    def uri(self) -> str:
        return mlflow_database(self.folder)

    def open(self, name: str, **options: Any) -> MLflowSink:
        where = str(self.folder / "artifacts")
        return MLflowSink(
            "tests", tracking_uri=self.uri, name=name, artifact_location=where, **options
        )

    def read(self, sink: Any) -> Seen:
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        run = client.get_run(sink.run_id)
        seen = Seen(run.info.run_name, run.data.params, run.info.status == "FAILED")
        for name in run.data.metrics:
            found = client.get_metric_history(sink.run_id, name)
            seen.scalars[name] = [(metric.step, metric.value) for metric in found]
        for artifact in client.list_artifacts(sink.run_id, "images"):
            if artifact.path.endswith(".png"):
                name, _, step, *_ = Path(artifact.path).name.split("+")
                image = _pixels(client.download_artifacts(sink.run_id, artifact.path))
                seen.images.setdefault(name, []).append((int(step), image))
        for found in seen.images.values():
            found.sort(key=lambda pair: pair[0])
        return seen


class Trackio(Tracker):
    package = "trackio"
    has_status = False  # but alerts

    def open(self, name: str, **options: Any) -> TrackioSink:
        return TrackioSink(f"tests-{self.folder.name}", name, **options)

    def read(self, sink: Any) -> Seen:
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import MEDIA_DIR

        database = sqlite3.connect(SQLiteStorage.get_project_db_path(sink.run.project))
        try:
            rows = database.execute(
                "SELECT step, metrics FROM metrics WHERE run_id = ? ORDER BY id", [sink.run.id]
            ).fetchall()
            (config,) = database.execute(
                "SELECT config FROM configs WHERE run_id = ?", [sink.run.id]
            ).fetchone() or ("{}",)
            alerts = database.execute(
                "SELECT level FROM alerts WHERE run_id = ?", [sink.run.id]
            ).fetchall()
        finally:
            database.close()
        mine = {k: v for k, v in json.loads(config).items() if not k.startswith("_")}
        seen = Seen(sink.run.name, mine, ("error",) in alerts)
        for step, text in rows:
            for name, value in json.loads(text).items():
                if not isinstance(value, dict):
                    seen.scalars.setdefault(name, []).append((step, float(value)))
                elif value["_type"] == "trackio.histogram":
                    counted = value["values"], value["bins"]
                    seen.histograms.setdefault(name, []).append((step, counted))
                else:
                    image = _pixels(MEDIA_DIR / value["file_path"])
                    seen.images.setdefault(name, []).append((step, image))
        return seen


class Neptune(Tracker):
    package = "neptune"
    has_histograms = False
    has_infinities = False

    def open(self, name: str, **options: Any) -> NeptuneSink:
        return NeptuneSink("tests/tests", name, **options)

    def read(self, sink: Any) -> Seen:
        folder = Path(os.environ["NEPTUNE_DATA_DIRECTORY"]) / "offline"
        (file,) = folder.glob(f"run__{sink.run._id}__*/data-1.log")
        seen, config = Seen("", {}, None), {}
        for line in file.read_text().splitlines():
            about = json.loads(line)["obj"]
            path, value = about["path"], about.get("value")
            name = "/".join(path)
            if path == ["sys", "name"]:
                seen.name = value
            elif path == ["sys", "failed"]:
                seen.failed = value
            elif path[0] == "parameters":
                config["/".join(path[1:])] = value
            elif about["type"] == "LogFloats":
                found = [(each["step"], each["value"]) for each in about["values"]]
                seen.scalars.setdefault(name, []).extend(found)
            elif about["type"] == "LogStrings":
                found = [(each["step"], float(each["value"])) for each in about["values"]]
                seen.scalars.setdefault(name, []).extend(found)
            elif about["type"] == "LogImages":
                for each in about["values"]:
                    image = _pixels(io.BytesIO(base64.b64decode(each["value"]["data"])))
                    seen.images.setdefault(name, []).append((each["step"], image))
        seen.config = config
        return seen


ALL = (Wandb, TensorBoard, MLflow, Trackio, Neptune)
SINKS = {
    "wandb": WandbSink,
    "tensorboard": TensorBoardSink,
    "mlflow": MLflowSink,
    "trackio": TrackioSink,
    "neptune": NeptuneSink,
}
INSTALLED = [each for each in ALL if importlib.util.find_spec(each.package) is not None]


def imported_quietly(tracker: type[Tracker]) -> None:
    """Import a package once, without the warnings that are its own and not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in (tracker.package, *tracker.modules):
            importlib.import_module(module)

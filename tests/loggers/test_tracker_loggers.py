"""Loggers of real trackers: a training program over many seeds, read back by the trackers' tools.

The program returns what it logs as well, so every value is compared with what the same compiled
program computed.
"""

import itertools
import json
import os
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.loggers import (
    JsonlLogger,
    MemoryLogger,
    MLflowLogger,
    MultiLogger,
    NeptuneLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandbLogger,
    _trackers,
)
from sawlog.sinks import MemorySink
from tests.sinks._trackers import (
    ALL,
    INSTALLED,
    MLflow,
    Neptune,
    TensorBoard,
    Trackio,
    Wandb,
    imported_quietly,
    mlflow_database,
)
from tests.thorough import often

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("tracker_folder")]
SEEDS, STEPS, BUFFER = often(4, 8), often(60, 1000), often(25, 100)
NAMES = [f"seed-{seed}" for seed in range(SEEDS)]

_numbers = itertools.count()


# -- the program -----------------------------------------------------------------------------------


def train(key, lr, steps):
    """A classifier of two layers, on points of its own; what it logs, ``[steps]`` for each name."""
    drawn = jax.random.normal(key, (108,))  # one call, because they are slow to compile
    x, y = drawn[:64].reshape(16, 4), jnp.sign(drawn[:64].reshape(16, 4) @ drawn[64:68])
    params = drawn[68:100].reshape(4, 8) / 2, drawn[100:] / 3

    def loss_of(params):
        out = jnp.tanh(x @ params[0]) @ params[1]
        return jnp.mean((out - y) ** 2), jnp.mean(out * y > 0)

    def step(params, i):
        (loss, accuracy), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        logs = {"loss": loss, "accuracy": accuracy}
        sawlog.log(logs, step=2 * i)
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), logs

    return jax.lax.scan(step, params, jnp.arange(steps))[1]


def program(logger, wrap, steps, **options):
    """A run of ``train`` for a seed that logs to the run of that seed."""

    def run(seed):
        key, lr = jax.random.key(seed), 0.05 / (1 + seed)
        state = logger.init(key, lr=lr, width=8)
        wrapped = getattr(logger, wrap)(lambda key: train(key, lr, steps), state, **options)
        return wrapped(key)

    return run


def pairs(values):
    """Steps and values of one name, as they were logged."""
    return [(2 * i, value) for i, value in enumerate(values.astype(float).tolist())]


def config_of(seed):
    return {"key": [0, seed], "lr": float(np.float32(0.05) / np.float32(1 + seed)), "width": 8}


# -- what each tracker has -------------------------------------------------------------------------


def wandb_settings():
    import wandb

    # What W&B finds out about the machine takes most of the time.
    return wandb.Settings(
        console="off",
        disable_git=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
    )


LOGGERS = {
    Wandb: lambda at: WandbLogger("tests", dir=at, mode="offline", settings=wandb_settings()),
    TensorBoard: TensorBoardLogger,
    MLflow: lambda at: MLflowLogger("tests", tracking_uri=mlflow_database(at)),
    Trackio: lambda at: TrackioLogger(at.name),
    Neptune: lambda at: NeptuneLogger("tests/tests"),
}


def test_every_tracker_has_a_logger():
    assert set(LOGGERS) == set(ALL)


def keep_sinks(logger):
    """The sinks that the logger opens from now on, by the name of the run."""
    sinks, open_run = {}, logger.open_run

    def opened(name, about, exists):
        assert name not in sinks
        sinks[name] = open_run(name, about, exists)
        return sinks[name]

    logger.open_run = opened
    return sinks


def written(kind, folder, wrap, **options):
    """What the program returned for each seed, and what the tracker has of each run."""
    imported_quietly(kind)
    at = folder / f"{kind.package}-{next(_numbers)}"  # workers may come here more than once
    at.mkdir()
    logger = LOGGERS[kind](at)
    sinks = keep_sinks(logger)
    with logger:
        run = program(logger, wrap, STEPS, **options)
        returned = jax.jit(jax.vmap(run))(jnp.arange(SEEDS))
    assert sorted(sinks) == NAMES
    return jax.device_get(returned), kind(at).read_all([sinks[name] for name in NAMES])


def settings_of(seen):
    """The config of a run; trackers that have no lists and numbers have their texts."""
    read = {str: json.loads}
    return {name: read.get(type(value), lambda x: x)(value) for name, value in seen.config.items()}


WAYS = [("spool", {}), ("tap", {"buffer": BUFFER})]
CASES = [(kind, *WAYS[0]) for kind in INSTALLED]
CASES += [(kind, *WAYS[1]) for kind in INSTALLED if kind in (TensorBoard, Trackio)]


@pytest.mark.parametrize(
    ("kind", "wrap", "options"), CASES, ids=[f"{kind.package}-{wrap}" for kind, wrap, _ in CASES]
)
def test_every_seed_is_a_run_with_every_value_in_order(kind, wrap, options, tracker_folder):
    returned, runs = written(kind, tracker_folder, wrap, **options)
    assert set(returned) == {"loss", "accuracy"}
    assert returned["loss"].shape == (SEEDS, STEPS)
    assert len({each.tobytes() for each in returned["loss"]}) == SEEDS  # runs can be told apart
    assert [seen.name for seen in runs] == NAMES
    for seed, seen in enumerate(runs):
        found = {name: seen.scalars[name] for name in seen.scalars if name != "step"}
        assert found == {name: pairs(values[seed]) for name, values in returned.items()}
        assert settings_of(seen) == config_of(seed)
        assert not seen.failed
        assert not seen.histograms
        assert not seen.images


# -- other ways of mapping, and several loggers at once --------------------------------------------


def over_devices(run, seeds):
    mesh = jax.make_mesh((4,), ("d",))
    mapped = jax.shard_map(jax.vmap(run), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    return jax.jit(mapped)(jax.device_put(seeds, NamedSharding(mesh, P("d"))))


MAPPED = {
    "nested vmap": lambda run, seeds: jax.jit(jax.vmap(jax.vmap(run)))(seeds.reshape(2, -1)),
    "shard_map": over_devices,
}


def multi(path):
    memory = MemoryLogger()
    return MultiLogger(memory, JsonlLogger(path), TensorBoardLogger(path)), memory


@pytest.mark.skipif(TensorBoard not in INSTALLED, reason="needs tensorboard")
@pytest.mark.parametrize(("wrap", "options"), [("spool", {}), ("tap", {"buffer": 7})])
@pytest.mark.parametrize("way", MAPPED)
def test_several_loggers_have_one_run_for_each_seed(way, wrap, options, tmp_path):
    imported_quietly(TensorBoard)
    steps = 20
    logger, memory = multi(tmp_path)
    tensorboard = logger.loggers[2]
    sinks = keep_sinks(tensorboard)
    with logger:
        returned = MAPPED[way](program(logger, wrap, steps, **options), jnp.arange(SEEDS))
    returned = jax.tree.map(lambda x: np.reshape(x, (SEEDS, steps)), jax.device_get(returned))
    assert set(returned) == {"loss", "accuracy"}
    assert sorted(memory.runs) == sorted(sinks) == NAMES
    assert sorted(file.stem for file in tmp_path.glob("*.jsonl")) == NAMES
    for seed, name in enumerate(NAMES):
        expected = {key: pairs(values[seed]) for key, values in returned.items()}
        assert of_memory(memory.runs[name]) == expected
        assert of_lines(tmp_path / f"{name}.jsonl") == expected
        seen = TensorBoard(tmp_path).read(sinks[name])
        assert (seen.name, seen.config) == (name, config_of(seed))
        assert seen.scalars == expected


def of_memory(sink):
    return {
        name: list(zip(each.steps["step"].tolist(), each.values.tolist(), strict=True))
        for name, each in sink.records.items()
    }


def of_lines(path):
    found = {}
    for line in map(json.loads, path.read_text().splitlines()):
        value = float(np.float32(line["value"]))  # as many digits as float32 needs
        found.setdefault(line["name"], []).append((line["step"], value))
    return found


@pytest.mark.skipif(TensorBoard not in INSTALLED, reason="needs tensorboard")
@pytest.mark.parametrize(("wrap", "options"), [("spool", {}), ("tap", {"buffer": 7})])
def test_several_loggers_trace_and_call_back_as_often_as_one(wrap, options, tmp_path):
    imported_quietly(TensorBoard)

    def counted(logger):
        traces = []

        def body(key):
            traces.append(key)
            return train(key, 0.1, 20)

        def run(seed):
            state = logger.init(jax.random.key(seed))
            return getattr(logger, wrap)(body, state, **options)(jax.random.key(seed))

        with logger:
            text = jax.jit(jax.vmap(run)).lower(jnp.arange(SEEDS)).as_text()
        return len(traces), text.count("xla_ffi_python_cpu_callback")

    several, alone = counted(multi(tmp_path)[0]), counted(MemoryLogger())
    assert several == alone
    assert alone[0] == 1
    assert alone[1] >= 2  # init, and the logs


# -- names and groups ------------------------------------------------------------------------------


def group_of(kind, at, sink):
    """What the tracker says the group of a run is."""
    if kind is Wandb:
        return sink.run.group
    if kind is TensorBoard:
        return Path(sink.path).parent.name
    if kind is MLflow:
        return sink._client.get_run(sink.run_id).data.tags["group"]
    if kind is Trackio:
        return sink._run.group
    texts = [path.read_text(errors="replace") for path in neptune_files()]
    return "sweep" if any('"group_tags"' in text and "sweep" in text for text in texts) else None


def neptune_files():
    own = Path(os.environ["NEPTUNE_DATA_DIRECTORY"])
    return [path for path in own.rglob("*.log") if path.is_file()]


@pytest.mark.parametrize("kind", INSTALLED, ids=[kind.package for kind in INSTALLED])
def test_names_and_groups_are_those_of_the_tracker(kind, tracker_folder):
    imported_quietly(kind)
    at = tracker_folder / f"{kind.package}-{next(_numbers)}"
    at.mkdir()
    logger = LOGGERS[kind](at)
    sinks = keep_sinks(logger)
    with logger:
        logger.run(lambda seed: sawlog.log({"x": seed}), name="ppo", group="sweep")(jnp.arange(2))
    assert list(sinks) == ["sweep/ppo-seed-0", "sweep/ppo-seed-1"]
    for seed, sink in enumerate(sinks.values()):
        seen = kind(at).read(sink)
        assert seen.name == f"ppo-seed-{seed}"
        assert seen.scalars["x"] == [(0, seed)]
        assert group_of(kind, at, sink) == "sweep"


@pytest.mark.parametrize("background", [True, False])
def test_who_waits_for_a_tracker(background, tmp_path, monkeypatch):
    """Without a thread of its own, a log is in the sink before the call returns."""
    pytest.importorskip("tensorboard")
    written = []

    class Kept(MemorySink):
        def write(self, records):
            written.append(threading.get_ident())

    logger = TensorBoardLogger(tmp_path, background=background, timeout=None, on_error="raise")
    monkeypatch.setattr(logger, "open_run", lambda *about: Kept())
    with logger:
        logger.log(logger.init(0), {"x": 1.0})
    assert [each == threading.get_ident() for each in written] == [not background]


@pytest.mark.parametrize(
    "make", [WandbLogger, TensorBoardLogger, MLflowLogger, TrackioLogger, NeptuneLogger]
)
def test_what_a_tracker_is_told_of_a_run(make, tmp_path, monkeypatch):
    """Options of the user stay beside the name, the group, the settings and the key."""
    told = {}
    sink = make.__name__.replace("Logger", "Sink")
    monkeypatch.setattr(_trackers, "require", lambda *package: None)
    monkeypatch.setattr(_trackers, sink, lambda *at, **options: told.update(options, at=at))
    given = {"tags": {"team": "blue"}} if make is MLflowLogger else {"images": False}
    logger = make(str(tmp_path), x="step", **given)
    about = {"key": [0, 7], "config": {"lr": 0.5}, "name": "ppo", "group": "sweep"}
    logger.open_run("sweep/ppo-seed-7", about, "append")
    assert told["config"] == {"key": [0, 7], "lr": 0.5}
    assert told["x"].of(["epoch", "step"], 1) == "step"
    assert told.get("images") is given.get("images")
    if make is MLflowLogger:
        assert (told["tags"], told["name"]) == ({"team": "blue", "group": "sweep"}, "ppo-seed-7")
    elif make is TensorBoardLogger:
        assert told["at"] == (tmp_path / "sweep/ppo-seed-7",)
    else:
        assert (told["group"], told["at"]) == ("sweep", (str(tmp_path), "ppo-seed-7"))

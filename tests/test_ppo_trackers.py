"""The PPO of `test_ppo.py` with the logger of every tracker and the console, read back.

Trackers have one step. It is the first axis of a log, here the update, and the other axes are
scalars beside the value; W&B has all of them in one row. An environment step in which some of the
environments end an episode is a histogram of those, where a tracker has histograms.
"""

from __future__ import annotations

import io
from typing import Any

import jax
import numpy as np
import pytest

from sawlog.loggers import ConsoleLogger, MemoryLogger, MultiLogger
from tests.loggers.test_tracker_loggers import LOGGERS, keep_sinks
from tests.sinks._trackers import INSTALLED, Wandb, imported_quietly
from tests.test_ppo import SEEDS, check_that_lanes_differ, expected, jitted, train

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("tracker_folder")]
LOSSES = ("loss/policy", "loss/value", "entropy", "grad_norm")
EPISODES = ("episode/return", "episode/length")
WAYS = [("spool", {}), ("tap", {"buffer": 3})]
Tree = Any


def ppo(logger: Any, wrap: str, options: dict[str, Any]) -> Tree:
    """Run it with a logger; return by hand what it logs, for all seeds."""

    def run(seed: Any) -> Tree:
        key = jax.random.key(seed)
        return getattr(logger, wrap)(train, logger.init(key), **options)(key)

    return jax.device_get(jitted(run)[1])


class Rows(Wandb):
    """W&B with whole rows: what was logged together with which steps."""

    def _row(self, files: Any, row: dict[str, Any], seen: Any) -> None:
        seen.rows = [*getattr(seen, "rows", []), row]
        super()._row(files, row, seen)


def ended(by_hand: Tree, seed: int, name: str) -> list[tuple[int, np.ndarray]]:
    """For each environment step in which episodes ended, the update and the values."""
    values, at = expected(by_hand, seed)[name]
    steps = at["env_step"]
    return [
        (int(at["update_step"][steps == step][0]), values[steps == step].astype(float))
        for step in np.unique(steps)
    ]


def check_histogram(found: Any, values: np.ndarray) -> None:
    """Counts and edges of a histogram are those of these values."""
    counts, edges = (np.asarray(part, float) for part in found)
    assert counts.sum() == len(values)
    inside = lambda x: (x >= edges[:-1] - 1e-6) & (x <= edges[1:] + 1e-6) & (counts > 0)
    assert all(inside(x).any() for x in values)


@pytest.mark.thorough
@pytest.mark.parametrize(("wrap", "options"), WAYS, ids=["spool", "tap"])
@pytest.mark.parametrize("kind", INSTALLED, ids=[kind.package for kind in INSTALLED])
def test_every_tracker_has_every_entry(
    kind: Any, wrap: str, options: dict, tracker_folder: Any
) -> None:
    imported_quietly(kind)
    at = tracker_folder / f"{kind.package}-{wrap}"
    at.mkdir()
    logger = LOGGERS[kind](at)
    sinks = keep_sinks(logger)
    with logger:
        by_hand = ppo(logger, wrap, options)
    check_that_lanes_differ(by_hand)
    assert sorted(sinks) == [f"seed-{seed}" for seed in range(SEEDS)]
    reader = (Rows if kind is Wandb else kind)(at)
    for seed, seen in enumerate(reader.read_all([sinks[name] for name in sorted(sinks)])):
        assert seen.name == f"seed-{seed}"
        assert not seen.failed
        if kind is Wandb:
            check_rows(seen.rows, by_hand, seed)
        else:
            check_scalars(seen.scalars, by_hand, seed)
        if not kind.has_histograms:
            assert not seen.histograms
            continue
        assert set(seen.histograms) == set(EPISODES)
        for name in EPISODES:
            wanted = ended(by_hand, seed, name)
            assert len(seen.histograms[name]) == len(wanted)
            for (update, found), (own, values) in zip(seen.histograms[name], wanted, strict=True):
                assert kind is Wandb or update == own
                check_histogram(found, values)


def check_scalars(scalars: dict[str, list], by_hand: Tree, seed: int) -> None:
    """Values at the update, in order, and the other axes as scalars."""
    wanted = expected(by_hand, seed)
    for name in LOSSES:
        values, at = wanted[name]
        pairs = list(zip(at["update_step"].tolist(), values.astype(float).tolist(), strict=True))
        assert scalars[name] == pairs
    assert {"epoch", "minibatch"} <= set(scalars)
    assert set(scalars) <= {*LOSSES, *EPISODES, "epoch", "minibatch", "env_step"} | {
        f"{name}/{part}" for name in EPISODES for part in ("mean", "std", "min", "max")
    }
    for axis in ("epoch", "minibatch"):
        grid = [(int(u), float(x)) for u, x in zip(at["update_step"], at[axis], strict=True)]
        assert set(scalars[axis]) == set(grid)


def check_rows(rows: list[dict[str, Any]], by_hand: Tree, seed: int) -> None:
    """Every row of W&B has the values that were logged together, and all their steps."""
    wanted = expected(by_hand, seed)
    for name in LOSSES:
        values, at = wanted[name]
        found = [row for row in rows if name in row]
        assert [row[name] for row in found] == values.astype(float).tolist()
        for axis, steps in at.items():
            assert [row[axis] for row in found] == steps.tolist()
    for name in EPISODES:
        steps = wanted[name][1]
        found = [row for row in rows if f"{name}._type" in row]
        assert [row["env_step"] for row in found] == np.unique(steps["env_step"]).tolist()
        assert [row["update_step"] for row in found] == [u for u, _ in ended(by_hand, seed, name)]


@pytest.mark.thorough
@pytest.mark.parametrize(("wrap", "options"), WAYS, ids=["spool", "tap"])
def test_the_console_shows_the_last_values_of_all_seeds(wrap: str, options: dict) -> None:
    file, memory = io.StringIO(), MemoryLogger()
    console = ConsoleLogger("ppo", file=file, every=1000)
    with MultiLogger(memory, console) as logger:
        by_hand = ppo(logger, wrap, options)
    rows = {row.name: row for row in console.dashboard.snapshot().rows}
    assert set(rows) == {*LOSSES, *EPISODES}
    for name in LOSSES:
        last = [float(expected(by_hand, seed)[name][0][-1]) for seed in range(SEEDS)]
        np.testing.assert_allclose(rows[name].mean, np.mean(last), rtol=1e-6)
        np.testing.assert_allclose(rows[name].std, np.std(last), rtol=1e-5)
        assert rows[name].runs == SEEDS
    assert "3 runs finished" in file.getvalue()

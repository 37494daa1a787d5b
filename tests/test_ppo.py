"""A whole training program, as people write it: PPO over several seeds in one ``jit``.

Five levels (seeds, updates, epochs, minibatches, the loss inside of ``value_and_grad``), three step
axes, and episodes that end at different times in each lane. The program also returns by hand what
it logs, so every way of logging is compared with what the very same program computed.
"""

from __future__ import annotations

import csv
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sawlog
from sawlog.loggers import CsvLogger, JsonlLogger, MemoryLogger, MultiLogger, SaveLogger

pytestmark = pytest.mark.long
SEEDS, UPDATES, STEPS, ENVS, EPOCHS, MINIBATCHES = 3, 2, 8, 4, 2, 2
Tree = Any


# -- the program -----------------------------------------------------------------------------------


def policy(params: Tree, obs: Any) -> tuple[Any, Any]:
    """Logits of two actions, and the value of a state."""
    hidden = jnp.tanh(obs @ params["in"])
    return hidden @ params["pi"], (hidden @ params["v"])[..., 0]


def env_step(params: Tree, state: Tree, key: Any, at: Tree) -> tuple[Tree, Tree]:
    """One step of one environment: a walk that ends when it is far away."""
    position, total, length = state
    obs = jnp.stack([position, jnp.ones(()), length / 8])
    logits, value = policy(params, obs)
    action = jax.random.categorical(key, logits)
    position = position + jnp.where(action == 1, 1.0, -1.0) * (1 + length / 4)
    reward = -jnp.abs(position) / 4
    total, length = total + reward, length + 1
    done = jnp.abs(position) > 2

    def ended() -> None:
        sawlog.log({"episode/return": total, "episode/length": length}, **at)

    lax.cond(done, ended, lambda: None)
    by_hand = {"return": total, "length": length, "done": done}
    log_prob = jax.nn.log_softmax(logits)[action]
    after = jax.tree.map(lambda x: jnp.where(done, 0.0, x), (position, total, length))
    seen = {"obs": obs, "action": action, "log_prob": log_prob, "value": value, "reward": reward}
    return after, ({**seen, "done": done}, by_hand)


def advantages(seen: Tree) -> Any:
    """Generalised advantages, backwards in time."""

    def back(carry: Tree, now: Tree) -> tuple[Tree, Any]:
        advantage, following = carry
        alive = 1.0 - now["done"]
        delta = now["reward"] + 0.9 * following * alive - now["value"]
        advantage = delta + 0.8 * alive * advantage
        return (advantage, now["value"]), advantage

    zeros = jnp.zeros_like(seen["value"][0])
    return lax.scan(back, (zeros, zeros), seen, reverse=True)[1]


def loss_of(params: Tree, batch: Tree, at: Tree) -> tuple[Any, Tree]:
    """The clipped objective; logs what it is made of."""
    logits, value = policy(params, batch["obs"])
    log_probs = jax.nn.log_softmax(logits)
    own = jnp.take_along_axis(log_probs, batch["action"][:, None], 1)[:, 0]
    ratio = jnp.exp(own - batch["log_prob"])
    gain = jnp.minimum(ratio * batch["advantage"], jnp.clip(ratio, 0.8, 1.2) * batch["advantage"])
    logs = {
        "loss/policy": -gain.mean(),
        "loss/value": ((value - batch["value"] - batch["advantage"]) ** 2).mean(),
        "entropy": -(jnp.exp(log_probs) * log_probs).sum(-1).mean(),
    }
    sawlog.log(logs, **at)
    return logs["loss/policy"] + 0.5 * logs["loss/value"] - 0.01 * logs["entropy"], logs


def train(key: Any) -> Tree:
    """The final parameters, and by hand all that is logged."""
    key, *keys = jax.random.split(key, 4)
    shapes = {"in": (3, 8), "pi": (8, 2), "v": (8, 1)}
    params = {
        name: jax.random.normal(k, shape) / 2
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }

    def update(carry: Tree, number: Any) -> tuple[Tree, Tree]:
        params, envs, key = carry

        def step(carry: Tree, t: Any) -> tuple[Tree, Tree]:
            envs, key = carry
            key, own = jax.random.split(key)
            at = {"update_step": number, "env_step": number * STEPS + t}
            one = lambda state, k: env_step(params, state, k, at)
            envs, seen = jax.vmap(one)(envs, jax.random.split(own, ENVS))
            return (envs, key), seen

        (envs, key), (seen, episodes) = lax.scan(step, (envs, key), jnp.arange(STEPS))
        batch = {**seen, "advantage": advantages(seen)}
        flat = jax.tree.map(lambda x: x.reshape(STEPS * ENVS, *x.shape[2:]), batch)

        def epoch(carry: Tree, e: Any) -> tuple[Tree, Tree]:
            params, key = carry
            key, own = jax.random.split(key)
            order = jax.random.permutation(own, STEPS * ENVS).reshape(MINIBATCHES, -1)

            def minibatch(params: Tree, given: Tree) -> tuple[Tree, Tree]:
                rows, m = given
                at = {"update_step": number, "epoch": e, "minibatch": m}
                part = jax.tree.map(lambda x: x[rows], flat)
                (_, logs), grads = jax.value_and_grad(loss_of, has_aux=True)(params, part, at)
                norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
                sawlog.log({"grad_norm": norm}, **at)
                params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
                return params, {**logs, "grad_norm": norm}

            params, logs = lax.scan(minibatch, params, (order, jnp.arange(MINIBATCHES)))
            return (params, key), logs

        (params, key), logs = lax.scan(epoch, (params, key), jnp.arange(EPOCHS))
        return (params, envs, key), (logs, episodes)

    envs = (jnp.zeros(ENVS),) * 3
    carry, by_hand = lax.scan(update, (params, envs, key), jnp.arange(UPDATES))
    return carry[0], by_hand


# -- what must come out ----------------------------------------------------------------------------


def expected(by_hand: Tree, seed: int) -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """For each name the values in order and their steps, for one seed."""
    losses, episodes = jax.tree.map(lambda x: np.asarray(x[seed]), by_hand)
    grid = np.indices((UPDATES, EPOCHS, MINIBATCHES)).reshape(3, -1)
    at = dict(zip(("update_step", "epoch", "minibatch"), grid, strict=True))
    found = {name: (values.reshape(-1), at) for name, values in losses.items()}
    done = episodes["done"]  # [updates, steps, envs]
    update, step, _ = np.nonzero(done)
    at = {"update_step": update, "env_step": update * STEPS + step}
    for name in ("return", "length"):
        found[f"episode/{name}"] = (episodes[name][done], at)
    return found


def jitted(run: Any) -> Any:
    return jax.jit(jax.vmap(run))(jnp.arange(SEEDS))


def by_entry(records: Any) -> dict[str, list[tuple]]:
    """Steps and values of what was logged."""
    found: dict[str, list[tuple]] = {}
    for name, entries in records.items():
        mask = np.ones(len(entries), bool) if entries.mask is None else entries.mask
        for place in zip(*np.nonzero(mask), strict=True):
            at = {a: int(s[place[: s.ndim]]) for a, s in entries.steps.items()}
            found.setdefault(name, []).append((at, float(entries.values[place])))
    return found


def wanted_entries(by_hand: Tree, seed: int) -> dict[str, list[tuple]]:
    return {
        name: [
            ({axis: int(steps[i]) for axis, steps in at.items()}, float(values[i]))
            for i in range(len(values))
        ]
        for name, (values, at) in expected(by_hand, seed).items()
        if len(values)
    }


def check_that_lanes_differ(by_hand: Tree) -> None:
    """Else the masks would not be tried."""
    done = np.asarray(by_hand[1]["done"])
    assert done.any(axis=(1, 2, 3)).all()
    assert len({each.tobytes() for each in done}) == SEEDS
    assert 0 < done.mean() < 0.6
    lanes = done.reshape(SEEDS * UPDATES * STEPS, ENVS).sum(axis=1)
    assert {0, 1} < set(lanes.tolist())


WAYS = [("spool", {}), ("tap", {}), ("tap", {"buffer": 3})]


@pytest.mark.turns(2)
@pytest.mark.parametrize(("wrap", "options"), WAYS, ids=["spool", "tap", "buffered tap"])
def test_every_logger_has_every_entry(wrap: str, options: dict, tmp_path: Any) -> None:
    memory = MemoryLogger()
    parts = [memory, SaveLogger(tmp_path / "stores"), JsonlLogger(tmp_path), CsvLogger(tmp_path)]
    with MultiLogger(*parts) as logger:

        def run(seed: Any) -> Tree:
            key = jax.random.key(seed)
            return getattr(logger, wrap)(train, logger.init(key), **options)(key)

        _, by_hand = jitted(run)
    check_that_lanes_differ(by_hand)
    for seed in range(SEEDS):
        wanted = wanted_entries(by_hand, seed)
        name = f"seed-{seed}"
        assert by_entry(memory.runs[name].records) == wanted
        assert json_entries(tmp_path / f"{name}.jsonl") == wanted
        assert csv_entries(tmp_path / f"{name}.csv") == wanted
        with sawlog.store.open(tmp_path / "stores" / name) as reader:
            assert by_entry(reader.records()) == wanted


def json_entries(path: Any) -> dict[str, list[tuple]]:
    found: dict[str, list[tuple]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        name, value = row.pop("name"), row.pop("value")
        if not isinstance(value, list):
            found.setdefault(name, []).append((row, float(np.float32(value))))
            continue
        for i, item in enumerate(value):
            if item is not None:
                own = {a: s[i] if isinstance(s, list) else s for a, s in row.items()}
                found.setdefault(name, []).append((own, float(np.float32(item))))
    return found


def csv_entries(path: Any) -> dict[str, list[tuple]]:
    found: dict[str, list[tuple]] = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            name, value = row.pop("name").partition("[")[0], row.pop("value")
            at = {axis: int(step) for axis, step in row.items() if step}
            found.setdefault(name, []).append((at, float(np.float32(value))))
    return found

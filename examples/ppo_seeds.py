"""PPO on cart-pole, eight seeds in one `jit`, each of them a run of its own.

    python examples/ppo_seeds.py
    sawlog view runs            # in another terminal, with --folder runs here

The whole of training is one function of a key: environment, rollouts, epochs and minibatches are
loops inside of it. It logs where things happen: the return of an episode where the episode ends,
the parts of the loss inside of `value_and_grad`. A logger gives each seed of the `vmap` its run.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import sawlog
from sawlog.loggers import SaveLogger

ENVS, STEPS, EPOCHS, MINIBATCHES = 8, 64, 4, 4
GAMMA, LAMBDA, CLIP, LONGEST = 0.99, 0.95, 0.2, 200


def push(state: Any, action: Any) -> Any:
    """One step of the physics: position, speed, angle and its speed, after 0.02 s."""
    x, v, angle, spin = state
    force = jnp.where(action == 1, 10.0, -10.0)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    pull = (force + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    move = pull - 0.05 * turn * cos / 1.1
    return jnp.stack([x + 0.02 * v, v + 0.02 * move, angle + 0.02 * spin, spin + 0.02 * turn])


def init(key: Any) -> dict[str, Any]:
    """The weights of the policy and of the value."""
    keys = jax.random.split(key, 3)
    shapes = {"hidden": (4, 64), "policy": (64, 2), "value": (64, 1)}
    return {
        name: {"w": jax.random.normal(k, shape) * shape[0] ** -0.5, "b": jnp.zeros(shape[1])}
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def act(params: Any, obs: Any) -> tuple[Any, Any]:
    """The logits of the two actions, and the value of a state."""
    hidden = jnp.tanh(obs @ params["hidden"]["w"] + params["hidden"]["b"])
    logits = hidden @ params["policy"]["w"] + params["policy"]["b"]
    return logits, (hidden @ params["value"]["w"] + params["value"]["b"])[..., 0]


def play(params: Any, env: Any, key: Any, update: Any) -> tuple[Any, Any]:
    """One step of one environment; logs an episode that ends."""
    obs, length = env
    act_key, reset_key = jax.random.split(key)
    logits, value = act(params, obs)
    action = jax.random.categorical(act_key, logits)
    after, length = push(obs, action), length + 1
    done = (jnp.abs(after[0]) > 2.4) | (jnp.abs(after[2]) > 0.21) | (length >= LONGEST)
    sawlog.log({"episode/return": length}, where=done, update=update)
    fresh = jax.random.uniform(reset_key, (4,), minval=-0.05, maxval=0.05)
    log_prob = jax.nn.log_softmax(logits)[action]
    seen = {"obs": obs, "action": action, "log_prob": log_prob, "value": value, "done": done}
    return (jnp.where(done, fresh, after), jnp.where(done, 0.0, length)), seen


def advantages(seen: Any, last: Any) -> Any:
    """Generalised advantages, backwards in time; every step is rewarded with 1."""

    def back(carry: Any, now: Any) -> tuple[Any, Any]:
        advantage, following = carry
        alive = 1.0 - now["done"]
        surprise = 1 + GAMMA * following * alive - now["value"]
        advantage = surprise + GAMMA * LAMBDA * alive * advantage
        return (advantage, now["value"]), advantage

    return lax.scan(back, (jnp.zeros(ENVS), last), seen, reverse=True)[1]


def loss_of(params: Any, batch: Any, update: Any) -> Any:
    """The clipped objective; logs what it is made of."""
    logits, value = act(params, batch["obs"])
    log_probs = jax.nn.log_softmax(logits)
    own = jnp.take_along_axis(log_probs, batch["action"][:, None], 1)[:, 0]
    ratio = jnp.exp(own - batch["log_prob"])
    gain = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-6)
    policy = -jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gain).mean()
    error = ((value - batch["target"]) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    clipped = (jnp.abs(ratio - 1) > CLIP).mean()
    logs = {"loss/policy": policy, "loss/value": error, "entropy": entropy, "clipped": clipped}
    sawlog.log(logs, update=update)
    return policy + 0.5 * error - 0.01 * entropy


def trainer(updates: int) -> Callable[[Any], Any]:
    """Return a function that trains from a key."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-3))

    def train(key: Any) -> Any:
        key, init_key = jax.random.split(key)
        params = init(init_key)

        def update(carry: Any, number: Any) -> tuple[Any, None]:
            params, memory, envs, key = carry
            key, play_key, order_key = jax.random.split(key, 3)

            def step(envs: Any, own: Any) -> tuple[Any, Any]:
                keys = jax.random.split(own, ENVS)
                return jax.vmap(play, (None, 0, 0, None))(params, envs, keys, number)

            envs, seen = lax.scan(step, envs, jax.random.split(play_key, STEPS))
            gained = advantages(seen, act(params, envs[0])[1])
            batch = {**seen, "advantage": gained, "target": gained + seen["value"]}
            flat = jax.tree.map(lambda a: a.reshape(STEPS * ENVS, *a.shape[2:]), batch)

            def learn(state: Any, rows: Any) -> tuple[Any, None]:
                params, memory = state
                part = jax.tree.map(lambda a: a[rows], flat)
                grads = jax.grad(loss_of)(params, part, number)
                sawlog.log({"grad_norm": optax.tree.norm(grads)}, update=number)
                changes, memory = optimizer.update(grads, memory, params)
                return (optax.apply_updates(params, changes), memory), None

            keys = jax.random.split(order_key, EPOCHS)
            orders = jax.vmap(lambda k: jax.random.permutation(k, STEPS * ENVS))(keys)
            rows = orders.reshape(EPOCHS * MINIBATCHES, -1)
            (params, memory), _ = lax.scan(learn, (params, memory), rows)
            return (params, memory, envs, key), None

        envs = (jnp.zeros((ENVS, 4)), jnp.zeros(ENVS))
        carry = (params, optimizer.init(params), envs, key)
        return lax.scan(update, carry, jnp.arange(updates))[0][0]

    return train


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train all seeds, and show how each of them learned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args(arguments)
    folder = options.folder or Path(tempfile.mkdtemp()) / "ppo"
    train = trainer(options.updates)
    with SaveLogger(folder) as logger:

        def run(seed: Any) -> Any:
            key = jax.random.key(seed)
            state = logger.init(key, updates=options.updates, envs=ENVS)
            return logger.tap(train, state, buffer=200)(key)

        jax.jit(jax.vmap(run))(jnp.arange(options.seeds))
    for seed in range(options.seeds):
        logs = sawlog.load(folder / f"seed-{seed}")
        returns = logs["episode/return"][logs.mask["episode/return"]]  # of all environments
        tenth = max(1, len(returns) // 10)
        print(
            f"seed {seed}: {len(returns):>5} episodes, mean return "
            f"{np.mean(returns[:tenth]):5.1f} -> {np.mean(returns[-tenth:]):5.1f}"
        )
    print(f"sawlog report {folder} -o ppo.html     draws them all")
    return folder


if __name__ == "__main__":
    main()

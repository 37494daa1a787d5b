"""What logging inside a JAX program costs, against the same program with the logs threaded by hand.

Run it with ``make bench`` or ``python benchmarks/jax_logging.py [--quick] [--save FILE]``. Where
the package ``lox`` can be imported it runs beside.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _timing import Contestant, Row, compare, report
from jax import lax

import sawlog

TINY_STEPS, MLP_STEPS = 100_000, 1_000


# -- two programs, each with logs and with the logs threaded by hand -------------------------------


def tiny_logged(x: Any, steps: int = TINY_STEPS) -> Any:
    """A scan whose body does almost nothing."""

    def body(carry: Any, i: Any) -> Any:
        carry = carry * 0.999 + 1.0
        sawlog.log({"carry": carry}, step=i)
        return carry, None

    return lax.scan(body, x, jnp.arange(steps))[0]


def tiny_by_hand(x: Any, steps: int = TINY_STEPS) -> Any:
    """The same, the logs as outputs of the scan."""

    def body(carry: Any, i: Any) -> Any:
        carry = carry * 0.999 + 1.0
        return carry, (carry, i)

    out, (values, indices) = lax.scan(body, x, jnp.arange(steps))
    return out, {"carry": values, "step": indices}


def _mlp_parts() -> tuple[Any, Callable[..., Any]]:
    sizes = (64, 64, 64, 10)
    keys = jax.random.split(jax.random.key(0), len(sizes))
    params = [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, m, n in zip(keys, sizes, sizes[1:], strict=False)
    ]

    def loss(params: Any, key: Any) -> Any:
        x = jax.random.normal(key, (32, sizes[0]))
        target = x[:, : sizes[-1]]
        for weights, bias in params[:-1]:
            x = jnp.tanh(x @ weights + bias)
        return jnp.mean((x @ params[-1][0] + params[-1][1] - target) ** 2)

    return params, loss


def _mlp(steps: int, logged: bool) -> tuple[Callable[[Any], Any], Any]:
    params, loss_of = _mlp_parts()

    def body(params: Any, step: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, jax.random.key(step))
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        if logged:
            sawlog.log({"loss": loss, "grad_norm": norm}, step=step)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        return params, None if logged else (loss, norm, step)

    def train(params: Any) -> Any:
        out, logs = lax.scan(body, params, jnp.arange(steps))
        if logged:
            return out
        return out, {"loss": logs[0], "grad_norm": logs[1], "step": logs[2]}

    return train, params


# -- the measurements ------------------------------------------------------------------------------


def run_time(rounds: int) -> list[Row]:
    """Compiled: ``jit(spool(f))`` against by hand."""
    x = jnp.float32(0)
    rows = _run("run: tiny scan, 100,000 steps", tiny_by_hand, tiny_logged, x, rounds, repeat=50)
    by_hand, params = _mlp(MLP_STEPS, logged=False)
    logged, _ = _mlp(MLP_STEPS, logged=True)
    return rows + _run("run: MLP training, 1,000 steps", by_hand, logged, params, rounds)


def _run(what: str, by_hand: Any, logged: Any, x: Any, rounds: int, repeat: int = 1) -> list[Row]:
    hand, spooled = jax.jit(by_hand), jax.jit(sawlog.spool(logged))
    contestants = [
        Contestant("by hand", lambda: jax.block_until_ready(hand(x))),
        Contestant("jit(spool)", lambda: jax.block_until_ready(spooled(x))),
    ]
    for contestant in contestants:
        contestant.call()
    return compare(what, contestants, rounds=rounds, repeat=repeat, limits={"jit(spool)": 1.05})


def compile_time(rounds: int) -> list[Row]:
    """Trace and compile from nothing."""
    rows = []
    for what, make in (
        ("trace + compile: tiny scan", lambda: (tiny_by_hand, tiny_logged, jnp.float32(0))),
        (
            "trace + compile: MLP training",
            lambda: (_mlp(MLP_STEPS, False)[0], *_mlp(MLP_STEPS, True)),
        ),
    ):
        by_hand, logged, x = make()

        def compile_anew(transform: Any, fun: Any, x: Any = x) -> None:
            jax.clear_caches()
            jax.jit(transform(lambda x: fun(x))).lower(x).compile()

        contestants = [
            Contestant("by hand", lambda f=by_hand, c=compile_anew: c(lambda f: f, f)),
            Contestant("jit(spool)", lambda f=logged, c=compile_anew: c(sawlog.spool, f)),
        ]
        for contestant in contestants:
            contestant.call()
        rows += compare(what, contestants, rounds=rounds, limits={"jit(spool)": 1.5})
    return rows


def bare_calls(rounds: int) -> list[Row]:
    """``spool(f)(x)`` written out again and again, against ``jax.jit`` of the hand-written one."""
    rows = []
    for what, steps, repeat in (("3 steps", 3, 200), ("100,000 steps", TINY_STEPS, 50)):
        x, traces = jnp.float32(0), []

        def logged(x: Any, steps: int = steps, traces: list = traces) -> Any:
            traces.append(1)
            return tiny_logged(x, steps)

        hand = jax.jit(lambda x, steps=steps: tiny_by_hand(x, steps))
        spooled = sawlog.spool(logged)
        contestants = [
            Contestant("jit by hand", lambda hand=hand, x=x: jax.block_until_ready(hand(x))),
            Contestant("spool(f)", lambda f=spooled, x=x: jax.block_until_ready(f(x)[0])),
        ]
        for contestant in contestants:
            contestant.call()
        rows += compare(
            f"bare call, traced once: {what}",
            contestants + _lox_bare(steps, x, steps == 3),
            rounds=rounds,
            repeat=repeat,
            limits={"spool(f)": 1.3},
        )
        if len(traces) != 1:
            raise SystemExit(f"spool(f)(x) traced the function {len(traces)} times instead of once")
    return rows


def _lox_bare(steps: int, x: Any, cheap: bool) -> list[Contestant]:
    if importlib.util.find_spec("lox") is None or not cheap:
        return []
    import lox  # type: ignore[import-not-found]

    if not hasattr(lox, "spool"):
        return []

    def logged(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            carry = carry * 0.999 + 1.0
            lox.log({"carry": carry}, step=i)
            return carry, None

        return lax.scan(body, x, jnp.arange(steps))[0]

    spooled = lox.spool(logged)
    return [Contestant("lox.spool(f)", lambda: jax.block_until_ready(spooled(x)[0]))]


def dispatch(rounds: int) -> list[Row]:
    """A jitted program with logs and nobody listening, against the same without logs."""

    def plain(x: Any) -> Any:
        return x * 2 + 1

    def logged(x: Any) -> Any:
        y = x * 2
        sawlog.log({"y": y})
        return y + 1

    without, with_logs, x = jax.jit(plain), jax.jit(logged), jnp.ones(8)
    contestants = [
        Contestant("no logs", lambda: without(x)),
        Contestant("logs, nobody listens", lambda: with_logs(x)),
    ]
    for contestant in contestants:
        contestant.call()
    limits = {"logs, nobody listens": 1.3}
    return compare(
        "dispatch of a jitted call", contestants, rounds=rounds, repeat=500, limits=limits
    )


def masked_dispatch(rounds: int) -> list[Row]:
    """A call whose logs have gaps returns as soon as the jitted one does: nothing is waited for."""

    def logged(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            sawlog.log({"a": carry, "b": 2 * carry}, where=i % 2 == 0, step=i)
            return carry + 1.0, None

        return lax.scan(body, x, jnp.arange(3))[0]

    jitted, spooled, x = jax.jit(sawlog.spool(logged)), sawlog.spool(logged), jnp.float32(0)
    contestants = [
        Contestant("jit(spool(f))", lambda: jitted(x)),
        Contestant("spool(f)", lambda: spooled(x)),
    ]
    for contestant in contestants:
        contestant.call()
    limits = {"spool(f)": 1.3}
    return compare("dispatch, masked logs", contestants, rounds=rounds, repeat=200, limits=limits)


def additions(rounds: int) -> list[Row]:
    """A thousand times ``logs + more`` in a Python loop, against lists joined at the end."""

    @jax.jit
    @sawlog.spool
    def step(x: Any) -> None:
        sawlog.log({"loss": x, "accuracy": 2 * x}, step=x)

    steps = [step(jnp.float32(i))[1] for i in range(1000)]

    def by_hand() -> Any:
        lists: dict[str, list[Any]] = {"loss": [], "accuracy": [], "step": []}
        for logs in steps:
            lists["loss"].append(logs["loss"])
            lists["accuracy"].append(logs["accuracy"])
            lists["step"].append(logs.step["loss"])
        return {name: np.stack([np.asarray(x) for x in values]) for name, values in lists.items()}

    def added() -> Any:
        total = sawlog.logdict()
        for logs in steps:
            total = total + logs
        return total["loss"]

    return compare(
        "1,000 times logs + more",
        [Contestant("lists by hand", by_hand), Contestant("+", added)],
        rounds=max(2, rounds // 4),
        limits={},
    )


def reductions(rounds: int) -> list[Row]:
    """A mean inside the program, against the same accumulation written by hand."""

    def step(carry: Any) -> Any:
        return carry * 0.999 + 1.0

    def compensated(x: Any) -> Any:
        def body(state: Any, _: Any) -> Any:
            carry, count, total, rest = state
            carry = step(carry)
            new = total + carry
            part = new - total
            lost = (total - (new - part)) + (carry - part)
            rest = rest + jnp.where(jnp.isfinite(new), lost, 0)
            joined = new + rest
            rest = jnp.where(jnp.isfinite(joined), rest - (joined - new), 0)
            return (carry, count + 1, joined, rest), None

        zero = jnp.float32(0)
        state = lax.scan(body, (x, jnp.int32(0), zero, zero), None, length=TINY_STEPS)[0]
        return state[0], (state[2] + state[3]) / state[1]

    def naive(x: Any) -> Any:
        def body(state: Any, _: Any) -> Any:
            carry = step(state[0])
            return (carry, state[1] + 1, state[2] + carry), None

        init = (x, jnp.int32(0), jnp.float32(0))
        carry, count, total = lax.scan(body, init, None, length=TINY_STEPS)[0]
        return carry, total / count

    def logged(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            carry = step(carry)
            sawlog.log({"carry": carry})
            return carry, None

        return lax.scan(body, x, None, length=TINY_STEPS)[0]

    x = jnp.float32(0)
    calls = {
        "by hand": jax.jit(compensated),
        'spool(reduce="mean")': jax.jit(sawlog.spool(logged, reduce="mean")),
        "by hand, plain sum": jax.jit(naive),
    }
    contestants = [
        Contestant(name, lambda f=f: jax.block_until_ready(jax.tree.leaves(f(x))))
        for name, f in calls.items()
    ]
    for contestant in contestants:
        contestant.call()
    limits = {'spool(reduce="mean")': 1.1}
    what = "mean over 100,000 steps"
    return compare(what, contestants, rounds=rounds, repeat=30, limits=limits)


def buffered_taps(rounds: int) -> list[Row]:
    """Throughput of ``tap(buffer=n)``, as a multiple of one ``jax.debug.callback`` a step."""

    def by_callback(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            carry = carry * 0.999 + 1.0
            jax.debug.callback(lambda carry, i: None, carry, i)
            return carry, None

        return lax.scan(body, x, jnp.arange(TINY_STEPS))[0]

    def wait(fun: Any) -> Any:
        def call() -> None:
            jax.block_until_ready(fun(jnp.float32(0)))
            jax.effects_barrier()

        return call

    seen: list[int] = []
    contestants = [
        Contestant(f"tap(buffer={n})", wait(sawlog.tap(tiny_logged, _count_into(seen), buffer=n)))
        for n in (100, 1_000, 10_000)
    ]
    base = Contestant("debug.callback a step", wait(jax.jit(by_callback)))
    rows = []
    for contestant, limit in zip(contestants, (80, 600, None), strict=True):
        contestant.call()
        if sum(seen) != TINY_STEPS:
            raise SystemExit(f"{contestant.name} delivered {sum(seen)} of {TINY_STEPS} entries")
        seen.clear()
        (row,) = compare("100,000 scalar logs", [contestant, base], rounds=rounds)
        rows.append(dataclasses.replace(row, limit=limit, at_least=True))
        seen.clear()
    return rows


def _count_into(seen: list[int]) -> Callable[[Any], None]:
    return lambda logs: seen.append(len(logs["carry"]))


def main() -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--save", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    scale = 1 if options.quick else 3
    rows = [
        *run_time(7 * scale),
        *compile_time(3 * scale),
        *bare_calls(7 * scale),
        *dispatch(7 * scale),
        *masked_dispatch(7 * scale),
        *additions(7 * scale),
        *reductions(7 * scale),
        *buffered_taps(scale + 1),
    ]
    return 0 if report(rows, "Logging inside JAX programs", options.save) else 1


if __name__ == "__main__":
    sys.exit(main())

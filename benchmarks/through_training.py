"""Attribution through training: how well it predicts retraining, its time and its memory.

    python benchmarks/through_training.py                        # all, half an hour on two cores
    python benchmarks/through_training.py --speed-only           # time and memory, about a minute
    python benchmarks/through_training.py --coverage-only        # standard errors, 10 minutes
    python benchmarks/through_training.py --quality-only --task heavy-tails --queries 50

Tasks have the answer by retraining on random halves: digits with wrong labels (ReLU, momentum), and
noisy regressions (most with tanh and Adam), on a ``--draw`` of data and subsets. Scores have the
default options. The influence function beside them is the exact damped Gauss-Newton matrix
(regression) or the Fisher matrix (digits), averaged over as many runs on random halves, with the
best of several dampings. Intervals of 90 % by ten runs are compared with the value of 200 further
runs. Times are ratios to training alone, in one process, by CPU time. MAGIC is bergson's derivative
through training in PyTorch, if that is installed: the same program, order and query.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _through_training_magic as magic
import _through_training_tasks as tasks
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _timing import Row, report

from sawlog import influence, store
from sawlog.influence._averages import _average as averages
from sawlog.jax._training.arguments import runner_of
from sawlog.jax._training.run_data import run_keys, subset_weights
from sawlog.jax._training.schedule import plan_for

DAMPINGS = (0.001, 0.01, 0.1, 1.0)
MANY = 10  # queries at once


#: The least linear datamodeling scores on digits, by the number of runs.
DIGITS = {10: 0.86, 30: 0.90}
#: By how much scores must be better than influence functions.
MARGIN = 0.03


def row(
    what: str, who: str, value: float, limit: float | None = None, at_least: bool = False
) -> Row:
    """Return a figure to save, with its mark."""
    return Row(what, who, value, value, value, 0.0, limit, at_least)


def quality(task: tasks.Task, runs: int) -> list[Row]:
    """Print and return the linear datamodeling scores of runs, and of influence functions."""
    rows = [row(task.name, "attainable", tasks.attainable(task))]
    print(f"\n{task.name}: attainable {rows[0].ratio:.3f}")
    path = tasks.CACHE / f"runs-{task.name}-{task.draw}-{len(task.queries[0])}"
    begun = time.process_time()
    scores = influence.through_training(
        task.data,
        task.queries,
        init=task.init,
        loss=task.loss,
        optimizer=task.optimizer,
        batch_size=task.batch_size,
        epochs=task.epochs,
        runs=runs,
        path=path,
    )
    spent = (time.process_time() - begun) / runs
    print(f"  {scores.about['trust']}")
    best: dict[int, float] = {}
    for count in sorted({1, 3, 10, 30, runs}):
        if count <= runs:
            robust, plain = (
                tasks.lds(task, averaged(path, range(count), kind).values)
                for kind in ("robust", "mean")
            )
            print(f"  {count:3d} runs: {robust:.3f}   (plain mean {plain:.3f})")
            best[count] = robust
            mark = DIGITS.get(count) if task.name == "digits" else None
            rows.append(row(task.name, f"sawlog, {count} runs", robust, mark, True))
            rows.append(row(task.name, f"plain mean, {count} runs", plain))
    print(f"  {spent:.1f} CPU seconds a run")
    found = influence_functions(task, runs)
    for count in sorted({min(runs, 10), runs}):
        other = max(tasks.lds(task, np.mean(each[:count], 0)) for each in found.values())
        print(f"  influence functions, {count} runs: {other:.3f}")
        rows.append(row(task.name, f"influence at the end, {count} runs", other))
        gap = best[count] - other
        rows.append(row(task.name, f"margin, {count} runs", gap, MARGIN, True))
    return rows


def averaged(path: Any, runs: range, kind: str) -> averages.Average:
    """Return the average of some of the runs in a store."""
    with store.open(path) as reader:
        rows = reader.gather(list(runs))
    parts = np.array(rows["parts"])
    own = parts.shape[1] - int(rows["guesses"][0])
    present = np.array(rows["weights"]) > 0
    return averages.average(parts[:, :own], kind, True, parts[:, own:], present)


def influence_functions(task: tasks.Task, runs: int) -> dict[Any, list[np.ndarray]]:
    """Return the scores of influence functions after each run on a random half.

    For each damping, with the curvature of the half and of all data.
    """
    count, found = len(task.data[0]), {}

    @jax.jit
    def scores(key: Any, own: Any, weights: Any) -> Any:
        params = tasks.trained(task, key, own)
        return [
            tasks.influence_scores(task, params, DAMPINGS, each)
            for each in (weights, jnp.ones_like(weights))
        ]

    for run in range(runs):
        half = subset_weights(0.5, count, run, task.draw).astype(np.float32)
        own = np.flatnonzero(half > 0)[: count // 2]
        for curvature, some in enumerate(scores(run_keys(task.draw, run)[0], own, half)):
            for damping, each in zip(DAMPINGS, some, strict=True):
                found.setdefault((curvature, damping), []).append(np.asarray(each))
    return found


def coverage(task: tasks.Task, further: int = 200, total: int = 300) -> list[Row]:
    """Print and return how many 90 % intervals contain the value of further runs."""
    path = tasks.CACHE / f"coverage-{task.name}-{task.draw}-{len(task.queries[0])}"
    influence.through_training(
        task.data,
        task.queries,
        init=task.init,
        loss=task.loss,
        optimizer=task.optimizer,
        batch_size=task.batch_size,
        epochs=task.epochs,
        runs=total,
        check=False,
        path=path,
    )
    print(f"\n{task.name}: 90 % intervals that hold the value of {further} further runs")
    rows = []
    for kind, name in (("robust", "default"), ("mean", "plain mean")):
        value = averaged(path, range(further), kind).values
        large = np.abs(value) >= np.quantile(np.abs(value), 0.9, axis=1, keepdims=True)
        for runs in (10, 30):
            held = []
            for first in range(further, total - runs + 1, runs):
                found = averaged(path, range(first, first + runs), kind)
                reach = averages.t_quantile(0.9, runs - 1) * found.errors
                held.append(np.abs(found.values - value) <= reach)
            shares = [float(each.mean()) for each in held]
            every, top = float(np.mean(held)), float(np.mean(held, 0)[large].mean())
            print(
                f"  {kind}, {runs} runs: {every:.1%} (sets of runs from {min(shares):.1%} to "
                f"{max(shares):.1%}), of the largest tenth {top:.1%}"
            )
            what, who = f"intervals, {task.name}", f"{name}, {runs} runs"
            rows.append(row(what, who, every, 0.85, True))
            rows.append(row(what, f"{who}, at most", every, 0.95))
            rows.append(row(what, f"largest tenth, {who}", top))
    return rows


# -- time and memory ------------------------------------------------------------------------------


def speed(steps: int, width: int = 64) -> list[Row]:
    """Print and return time and memory of one query and of many, as ratios to training."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 32)).astype(np.float32)
    y = np.tanh(x[:, 0]).astype(np.float32)
    order = random.integers(0, 1000, (steps, 32))

    def init(key: Any) -> Any:
        a, b = jax.random.split(key)
        return jax.random.normal(a, (32, width)) / 6, jax.random.normal(b, (width,)) / 12

    def loss(params: Any, batch: Any) -> Any:
        return (jax.nn.gelu(batch[0] @ params[0]) @ params[1] - batch[1]) ** 2

    optimizer = optax.adam(1e-3)

    @jax.jit
    def train(key: Any) -> Any:
        params = init(key)

        def step(state: Any, rows: Any) -> Any:
            batch = jnp.asarray(x)[rows], jnp.asarray(y)[rows]
            grads = jax.grad(lambda p: loss(p, batch).mean())(state[0])
            updates, memory = optimizer.update(grads, state[1], state[0])
            return (optax.apply_updates(state[0], updates), memory), None

        return jax.lax.scan(step, (params, optimizer.init(params)), jnp.asarray(order))[0][0]

    def scored(queries: int, memory: str) -> Callable[[], Any]:
        runner = runner_of(  # compiled once
            (x, y),
            (x[:queries], y[:queries]),
            init=init,
            loss=loss,
            optimizer=optimizer,
            batches=order,
            subset=None,
            memory=memory,
        )
        return lambda: runner.run(0)

    programs = {("training", 0): lambda: jax.block_until_ready(train(jax.random.key(0)))}
    for memory in ("auto", "sqrt", "log"):
        programs |= {(memory, queries): scored(queries, memory) for queries in (1, MANY)}
    beside = magic.installed() and steps <= 1000  # it takes minutes for more
    if beside:
        start = jax.tree.map(np.asarray, init(run_keys(0, 0)[0]))
        programs["magic", 0], programs["magic", 1] = magic.programs(x, y, order, start, 1e-3)
        ours, theirs = programs["auto", 1]().values[0], programs["magic", 1]()
        same = float(ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs))
    found = _cpu(programs)
    alone = found.pop(("training", 0))
    state_bytes = 3 * 4 * (32 * width + width)
    print(f"\n{steps:,} steps: training alone {alone:.2f} CPU seconds")
    rows = []
    for memory in ("auto", "sqrt", "log"):
        one, many = (found[memory, queries] / alone for queries in (1, MANY))
        states = plan_for(steps, memory, state_bytes).states
        print(
            f"  {memory:4s}  one query {one:.1f}x, of {MANY} queries each {many / MANY:.2f}x, "
            f"{states} states in memory"
        )
        mark = None if memory == "log" else 6
        rows.append(row(f"{steps:,} steps", f"one query / training, {memory}", one, mark))
        rows.append(row(f"{steps:,} steps", f"each of {MANY}, {memory}", many / MANY))
    if beside:
        own = found["magic", 0]
        print(
            f"  MAGIC one query {found['magic', 1] / own:.1f}x its own training of {own:.2f} CPU "
            f"seconds; cosine with these scores {same:.6f}"
        )
        rows.append(row(f"{steps:,} steps", "MAGIC / its training", found["magic", 1] / own))
    return rows


def _cpu(programs: dict[Any, Callable[[], Any]], rounds: int = 3) -> dict[Any, float]:
    """Return the least CPU time of each program, in turns, after a first call that compiles."""
    spent: dict[Any, list[float]] = {name: [] for name in programs}
    for _ in range(rounds + 1):
        for name, program in programs.items():
            begun = time.process_time()
            program()
            spent[name].append(time.process_time() - begun)
    return {name: min(times[1:]) for name, times in spent.items()}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", type=int, default=0, help="another draw of data and subsets")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--task", choices=["digits", *tasks.REGRESSIONS], help="only one task")
    only = parser.add_mutually_exclusive_group()
    for part in ("speed", "coverage", "quality"):
        only.add_argument(f"--{part}-only", dest="only", action="store_const", const=part)
    parser.add_argument("--save", type=Path, help="write the figures there as JSON")
    args = parser.parse_args()
    rows = measured(args)
    report(rows, "attribution through training", args.save)


def measured(args: argparse.Namespace) -> list[Row]:
    """Measure what was asked for."""
    rows: list[Row] = []
    kinds = [kind for kind in tasks.REGRESSIONS if args.task in (None, kind)]
    if args.only in (None, "speed"):
        for steps in (1000, 10_000):
            rows += speed(steps)
    if args.only in (None, "coverage"):
        if args.task in (None, "digits"):
            rows += coverage(tasks.digits(args.draw, test=min(args.queries, 20)))
        for kind in kinds:
            rows += coverage(tasks.regression(args.draw, test=min(args.queries, 40), kind=kind))
    if args.only not in (None, "quality"):
        return rows
    if args.task in (None, "digits"):
        rows += quality(tasks.digits(args.draw, test=args.queries), args.runs)
    for kind in kinds:
        rows += quality(tasks.regression(args.draw, test=args.queries, kind=kind), args.runs)
    return rows


if __name__ == "__main__":
    main()

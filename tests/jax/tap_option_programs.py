"""Programs for `tap(interval=, reduce=, buffer=)`, with what each logs lane by lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

XS = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.5, 6.0], np.float32)

Entry = tuple[float, float]


NUMPY: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "sum": np.sum,
    "max": np.max,
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
}


def step_of(mode: str, steps: Any) -> float:
    return float(NUMPY[mode if mode in ("mean", "first") else "last"](steps))


@dataclass(frozen=True)
class Options:
    """The options of one case."""

    interval: int | None = None
    buffer: int | None = None
    reduce: Any = None

    def mode(self, name: str) -> str | None:
        mode = self.reduce.get(name) if isinstance(self.reduce, dict) else self.reduce
        return None if mode == "append" else mode

    def callbacks(self, name: str, entries: list[Entry]) -> list[list[Entry]]:
        """The entries of a name in each callback that has any."""
        kept, mode = entries[:: self.interval or 1], self.mode(name)
        size = self.buffer or (1 if mode is None else max(1, len(kept)))
        batches = [kept[i : i + size] for i in range(0, len(kept), size)]
        if mode is None:
            return batches
        reduced = []
        for batch in batches:
            values, steps = zip(*batch, strict=True)
            reduced.append([(float(NUMPY[mode](values)), step_of(mode, steps))])
        return reduced

    def given(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass
class Seen:
    """What a callback was given, of each name and lane."""

    lanes: int
    calls: list[Any] = field(default_factory=list)

    def batches(self, name: str, lane: int) -> list[list[Entry]]:
        found = []
        for logs in self.calls:
            if name in logs:
                values, steps = (np.asarray(x[name]) for x in (logs.entries(), logs.step))
                steps = steps.reshape(values.shape)
                mask = np.asarray(logs.mask.get(name, np.ones(values.shape, bool)))
                mask = mask.reshape(values.shape)
                if self.lanes:
                    values, steps, mask = values[:, lane], steps[:, lane], mask[:, lane]
                rows = list(zip(values[mask].tolist(), steps[mask].tolist(), strict=True))
                if rows:
                    found.append(rows)
        return found


def same(found: list[list[Entry]], expected: list[list[Entry]]) -> None:
    assert [len(batch) for batch in found] == [len(batch) for batch in expected]
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.array(two, np.float64), 1e-5)


def steps(n: int) -> Callable[[Any], Any]:
    def fun(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            sawlog.log({"x": x, "more": x + 1}, step=i)
            return x + 1, None

        return lax.scan(body, x, jnp.arange(n))[0]

    return fun

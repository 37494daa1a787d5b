"""How much a run of the tests does.

By default every program, every option and every check is tried, but not every pair of them: those
that differ little take turns, and tests marked ``thorough`` are left out; `make test-long` runs
these. `SAWLOG_THOROUGH=1`, which `make test-thorough` sets, tries all of them, repeats more, and
lets XLA optimise as it does for users. `SAWLOG_EXAMPLES=10` makes random tests ten times as long,
and no longer the same ones every time.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from hypothesis import HealthCheck, Phase, settings

S = TypeVar("S")
T = TypeVar("T")

THOROUGH = os.environ.get("SAWLOG_THOROUGH", "0") not in ("", "0")
MORE = int(os.environ.get("SAWLOG_EXAMPLES", "1"))
TURN = int(sys.version_info >= (3, 12))
"""Whose turn it is among variants: `make test-newest` has another one than `make test`."""


def often(default: int, thorough: int) -> int:
    """How often to repeat something."""
    return thorough if THOROUGH else default


def examples(default: int, thorough: int) -> settings:
    """The settings of a Hypothesis test with that many examples, random ones in every run."""
    return settings(max_examples=often(default, thorough) * MORE)


def seeded_examples(default: int, thorough: int) -> settings:
    """The same ones in every run, and what fails is not shrunk, unless ``SAWLOG_EXAMPLES``."""
    return settings(
        max_examples=often(default, thorough) * MORE,
        derandomize=MORE == 1,
        phases=[p for p in Phase if MORE > 1 or p not in (Phase.shrink, Phase.explain)],
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def pairs(first: Iterable[S], second: Sequence[T], few: int) -> list[tuple[S, T]]:
    """All pairs if thorough; else each of the first with a few of the second, which take turns."""
    number = len(second) if THOROUGH else few
    return [
        (one, second[(i + j) % len(second)]) for i, one in enumerate(first) for j in range(number)
    ]


def one_of(choices: Sequence[T], name: str) -> T:
    """The choice whose turn it is; it depends on the name alone, not on what else there is."""
    return choices[(zlib.crc32(name.encode()) + TURN * len(choices) // 2) % len(choices)]

"""Programs for the tests that compare spool and tap with jax.jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sawlog
import sawlog.errors


def tap_to_list(fun: Callable[..., Any], **options: Any) -> Callable[..., tuple[Any, list]]:
    """`tap` in the shape of `spool`: the output, and a list of what the callback was given."""

    def call(*args: Any, **kwargs: Any) -> tuple[Any, list]:
        seen: list[Any] = []
        return sawlog.tap(fun, seen.append, **options)(*args, **kwargs), seen

    return call


def last_of(logs: Any) -> Any:
    """The last thing logged under x, by spool or by tap."""
    return (logs[-1] if isinstance(logs, list) else logs)["x"]


both = pytest.mark.parametrize("transform", [sawlog.spool, tap_to_list], ids=["spool", "tap"])


class Counted:
    """A function that logs its argument and counts how often it is traced."""

    def __init__(self) -> None:
        self.traces = 0

        def fun(x: Any, scale: Any = 2) -> Any:
            self.traces += 1
            sawlog.log({"x": x})
            return x * scale

        self.fun = fun


class Model:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, x: Any) -> Any:
        sawlog.log({"x": self.weight * x})
        return self.weight * x

    def method(self, x: Any) -> Any:
        return self(x)

    @classmethod
    def build(cls, x: Any) -> Any:
        return cls(7.0)(x)

    @staticmethod
    def plain(x: Any) -> Any:
        return Model(9.0)(x)


def logs_x(x: Any) -> Any:
    sawlog.log({"x": x}, step=1)
    return x * x

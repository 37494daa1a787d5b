"""The methods of a logdict that make one value of many: over the entries, or over the lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax._logdict import lanes as _lanes

OVER = ("lanes", "entries")


class StatisticsMethods:
    """What ``logdict`` has of statistics; each method gives a logdict.

    ``over="lanes"`` is over the axes of ``vmap``: the seeds, usually. It respects masks, and
    matches entries by their steps where lanes logged at different ones; the result is on the host.
    ``over="entries"`` is over the entries of each lane, as :meth:`logdict.reduce` does it.
    """

    __slots__ = ()

    def mean(self, over: str = "lanes") -> Any:
        """The mean.

        >>> import jax, jax.numpy as jnp, sawlog
        >>> def f(x):
        ...     sawlog.log({"x": x}, where=x > 0)
        >>> _, logs = sawlog.spool(jax.vmap(f))(jnp.array([-1.0, 2.0, 4.0]))
        >>> print(logs.mean(over="lanes")["x"], logs.count(over="lanes")["x"])
        3.0 2
        """
        return self._statistic("mean", _lanes.mean, over)

    def std(self, over: str = "lanes") -> Any:
        """The standard deviation of the lanes or entries, divided by their number."""
        return self._statistic("std", _lanes.std, over)

    def var(self, over: str = "lanes") -> Any:
        """The variance, divided by the number of lanes or entries."""
        return self._statistic("var", _lanes.var, over)

    def sum(self, over: str = "lanes") -> Any:
        """The sum."""
        return self._statistic("sum", _lanes.total, over)

    def min(self, over: str = "lanes") -> Any:
        """The least value."""
        return self._statistic("min", _lanes.minimum, over)

    def max(self, over: str = "lanes") -> Any:
        """The greatest value."""
        return self._statistic("max", _lanes.maximum, over)

    def count(self, over: str = "lanes") -> Any:
        """How many lanes logged each entry, or how many entries each lane logged."""
        return self._statistic("count", _lanes.count, over)

    def median(self, over: str = "lanes") -> Any:
        """The median."""
        return self.quantile(0.5, over, "median")

    def quantile(self, q: Any, over: str = "lanes", _name: str = "quantile") -> Any:
        """The quantile ``q``, from 0 to 1; several have an axis behind the entries or lanes."""
        if np.size(q) == 0 or not np.all((np.asarray(q) >= 0) & (np.asarray(q) <= 1)):
            raise ArgumentError(f"A quantile is a number from 0 to 1, or several, got {q!r}.")
        if over == "entries":
            logs: Any = self
            quantile = _lanes.quantile(q)
            parts = (_lanes.over_entries(part, quantile, _name) for part in logs._parts())
            return logs._of(parts, logs._layout.empty)
        return self._statistic(_name, _lanes.quantile(q), over)

    def _statistic(self, name: str, statistic: Callable[..., Any], over: str) -> Any:
        logs: Any = self
        if over == "entries":
            return logs.reduce(name)
        if over != "lanes":
            raise ArgumentError(f'over must be "lanes" or "entries", got {over!r}.')
        parts = list(logs._parts())
        if parts and not any(map(_lanes.has_lanes, parts)):
            raise ArgumentError(
                f"These logs have no lanes: no vmap is around them. Hint: logs.{name}"
                '(over="entries") is over the entries of each name.'
            )
        return logs._of((_lanes.over_lanes(p, statistic, name) for p in parts), logs._layout.empty)

"""The methods of a logdict that compute statistics, over lanes or over entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sawlog._validate import one_of, refuse
from sawlog.errors import ArgumentError
from sawlog.jax._logdict import lanes

OVER = ("lanes", "entries")


class StatisticsMethods:
    """Statistics of a ``logdict``; each method returns a logdict.

    ``over="lanes"`` reduces the axes of ``vmap``, usually seeds. It respects masks, and matches
    entries by step where lanes logged at different steps. The result is on the host.
    ``over="entries"`` reduces the entries of each lane, as :meth:`logdict.reduce` does.
    """

    __slots__ = ()

    def mean(self, over: str = "lanes") -> Any:
        """Return the mean.

        >>> import jax, jax.numpy as jnp, sawlog
        >>> def f(x):
        ...     sawlog.log({"x": x}, where=x > 0)
        >>> _, logs = sawlog.spool(jax.vmap(f))(jnp.array([-1.0, 2.0, 4.0]))
        >>> print(logs.mean(over="lanes")["x"], logs.count(over="lanes")["x"])
        3.0 2
        """
        return self._statistic("mean", over)

    def std(self, over: str = "lanes") -> Any:
        """Return the standard deviation, divided by the number of lanes or entries."""
        return self._statistic("std", over)

    def var(self, over: str = "lanes") -> Any:
        """Return the variance, divided by the number of lanes or entries."""
        return self._statistic("var", over)

    def sum(self, over: str = "lanes") -> Any:
        """Return the sum."""
        return self._statistic("sum", over)

    def min(self, over: str = "lanes") -> Any:
        """Return the minimum."""
        return self._statistic("min", over)

    def max(self, over: str = "lanes") -> Any:
        """Return the maximum."""
        return self._statistic("max", over)

    def count(self, over: str = "lanes") -> Any:
        """Return how many lanes logged each entry, or how many entries each lane logged."""
        return self._statistic("count", over)

    def median(self, over: str = "lanes") -> Any:
        """Return the median."""
        return self.quantile(0.5, over, "median")

    def quantile(self, q: Any, over: str = "lanes", _name: str = "quantile") -> Any:
        """Return the quantile ``q``, from 0 to 1; several add an axis after entries or lanes."""
        if np.size(q) == 0 or not np.all((np.asarray(q) >= 0) & (np.asarray(q) <= 1)):
            refuse("q", "a number from 0 to 1, or several", q)
        if over == "entries":
            logs: Any = self
            quantile = lanes.quantile(q)
            parts = (lanes.over_entries(part, quantile, _name) for part in logs._parts())
            return logs._of(parts, logs._layout.empty)
        return self._over_lanes(_name, lanes.quantile(q), over)

    def _statistic(self, name: str, over: str) -> Any:
        logs: Any = self
        if over == "entries":
            return logs.reduce(name)
        return self._over_lanes(name, lanes.statistic(name), over)

    def _over_lanes(self, name: str, statistic: Callable[..., Any], over: str) -> Any:
        one_of("over", over, OVER)
        logs: Any = self
        parts = list(logs._parts())
        if parts and not any(map(lanes.has_lanes, parts)):
            raise ArgumentError(
                f"These logs have no lanes: they were not logged under vmap. Hint: logs.{name}"
                '(over="entries") reduces the entries of each name.'
            )
        return logs._of((lanes.over_lanes(p, statistic, name) for p in parts), logs._layout.empty)

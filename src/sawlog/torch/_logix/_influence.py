"""Scores as LogIX returns them: tensors under names, with the Hessian that was measured."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sawlog.errors import ArgumentError
from sawlog.influence import Influence, LogLoader, Ranking, Scores
from sawlog.torch._logix._logs import ready


class _SavedAsDict:
    """Is saved as the dict that LogIX has, so that ``torch.load`` reads it with its defaults."""

    _keys: tuple[str, ...]

    def __reduce__(self) -> Any:
        mine: Any = self
        return OrderedDict, ([(key, mine[key]) for key in self._keys],)

    def __copy__(self) -> Any:
        return dataclasses.replace(self)  # type: ignore[type-var]

    def __deepcopy__(self, memo: Any) -> Any:
        own: Any = self
        fields = {
            f.name: copy.deepcopy(getattr(own, f.name), memo) for f in dataclasses.fields(own)
        }
        return dataclasses.replace(own, **fields)


@dataclasses.dataclass(frozen=True)
class LogixScores(_SavedAsDict, Scores):
    """Scores whose ``["influence"]`` is a tensor, or a dict of tensors by group of layers.

    Args:
        groups: the scores of each group, summed over its layers.
    """

    groups: Mapping[str, np.ndarray] | None = None

    _keys = ("src_ids", "tgt_ids", "influence")

    def __getitem__(self, query: Any) -> Any:
        """Return what LogIX does for its keys, and :class:`sawlog.influence.Scores` for others."""
        if isinstance(query, str) and query in ("influence", "src_ids", "tgt_ids"):
            if query == "src_ids":
                return self.queries.tolist()
            if query == "tgt_ids":
                return self.ids.tolist()
            return _tensors(self.values, self.groups)
        return super().__getitem__(query)

    # Programs written for earlier versions of LogIX use the scores as the tensor itself.

    def cpu(self) -> torch.Tensor:
        """Return the scores as a tensor."""
        return torch.from_numpy(np.ascontiguousarray(self.values))

    def numpy(self) -> np.ndarray:
        """Return the scores as an array."""
        return self.values

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Let functions of PyTorch, such as ``torch.topk``, take the scores as a tensor."""
        del types

        def tensor(value: Any) -> Any:
            return value.cpu() if isinstance(value, cls) else value

        return func(*map(tensor, args), **{k: tensor(v) for k, v in (kwargs or {}).items()})


@dataclasses.dataclass(frozen=True)
class LogixRanking(_SavedAsDict, Ranking):
    """One number per example; ``["influence"]`` is a tensor, or a dict of tensors by group.

    Args:
        groups: the numbers of each group, summed over its layers.
    """

    groups: Mapping[str, np.ndarray] | None = None

    _keys = ("src_ids", "influence")

    def __getitem__(self, key: str) -> Any:
        """Return what LogIX does: tensors, and ids as a list."""
        found = super().__getitem__(key)
        if key == "src_ids":
            return found.tolist()
        return _tensors(self.values, self.groups)


class LogixInfluence(Influence):
    """Influence of the examples of a run, as LogIX's ``InfluenceFunction`` computes it.

    Args:
        train: returns the stored logs.
        hessian: returns what ``hessian="auto"`` stands for.
    """

    def __init__(
        self, train: Callable[[], Any] | None = None, hessian: Callable[[], str] = lambda: "none"
    ) -> None:
        super().__init__(_no_logs if train is None else train)
        self._hessian = hessian
        self.options: dict[str, Any] = {}
        self._saved: list[LogixScores] = []

    def compute_influence_all(
        self, test_log: Any = None, log_loader: LogLoader | None = None, **options: Any
    ) -> LogixScores:
        """Score every stored example for queries; ``save=True`` keeps the scores."""
        save, groups = options.pop("save", False), options.pop("influence_groups", None)
        options = self._with_defaults(options, groups)
        options["src_log"] = ready(options.pop("src_log", test_log))
        found = _with_groups(super().compute_influence_all(None, log_loader, **options), groups)
        if save:
            self._saved.append(found)
        return found

    def compute_influence(self, src_log: Any, tgt_log: Any, **options: Any) -> LogixScores:
        """Score the examples of ``tgt_log`` for the queries of ``src_log``."""
        groups = options.pop("influence_groups", None)
        options = self._with_defaults(options, groups)
        return _with_groups(
            super().compute_influence(ready(src_log), ready(tgt_log), **options), groups
        )

    def compute_self_influence(self, test_log: Any = None, **options: Any) -> LogixRanking:
        """Score the influence of examples on themselves: the stored ones, or queries."""
        groups = options.pop("influence_groups", None)
        options = self._with_defaults(options, None)
        options.pop("mode", None)
        own = super().compute_self_influence(ready(options.pop("src_log", test_log)), **options)
        return LogixRanking(own.ids, own.values, own.layers, _sums(own, groups))

    def get_influence_scores(self) -> LogixScores:
        """Return all scores that were computed with ``save=True``.

        Raises:
            ArgumentError: there are none.
        """
        if not self._saved:
            raise ArgumentError(
                "No scores were saved. Hint: compute_influence_all(..., save=True)."
            )
        return joined(self._saved)

    def _with_defaults(
        self, options: dict[str, Any], groups: Sequence[str] | None
    ) -> dict[str, Any]:
        given = {**self.options, **options}
        given = {key: value for key, value in given.items() if value is not None}
        if given.get("hessian", "auto") == "auto" and "curvature" not in given:
            given["hessian"] = self._hessian()
        if groups is not None:
            given["per_layer"] = True
        return given


def joined(several: Sequence[LogixScores]) -> LogixScores:
    """Return the scores of several batches of queries for the same examples."""
    first = several[0]
    for each in several[1:]:
        if not np.array_equal(each.ids, first.ids):
            raise ArgumentError(
                "Scores of different examples cannot be joined. Hint: score all queries against "
                "the same loader."
            )
    groups = None
    if first.groups is not None:
        groups = {n: np.concatenate([(e.groups or {})[n] for e in several]) for n in first.groups}
    layers = {name: np.concatenate([e.layers[name] for e in several]) for name in first.layers}
    return LogixScores(
        queries=np.concatenate([each.queries for each in several]),
        ids=first.ids,
        values=np.concatenate([each.values for each in several]),
        layers=layers,
        about=first.about,
        groups=groups,
    )


def _with_groups(scores: Scores, groups: Sequence[str] | None) -> LogixScores:
    known = {field.name: getattr(scores, field.name) for field in dataclasses.fields(scores)}
    return LogixScores(**known, groups=_sums(scores, groups))


def _sums(found: Scores | Ranking, groups: Sequence[str] | None) -> dict[str, np.ndarray] | None:
    """Return the sums over the layers whose names contain each group."""
    if groups is None:
        return None
    none = np.zeros_like(found.values)
    return {
        group: np.sum([own for name, own in found.layers.items() if group in name] or [none], 0)
        for group in groups
    }


def _tensors(values: np.ndarray, groups: Mapping[str, np.ndarray] | None) -> Any:
    total = torch.from_numpy(np.ascontiguousarray(values))
    if groups is None:
        return total
    return {"total": total, **{name: torch.from_numpy(each) for name, each in groups.items()}}


def _no_logs() -> Any:
    raise ArgumentError("There are no logs. Hint: run.influence has those of a run.")

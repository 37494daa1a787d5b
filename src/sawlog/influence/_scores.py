"""``Scores``: the result of attribution, as a matrix or the top k of each query."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog._optional import require
from sawlog._rich import Table, Text
from sawlog._text import printable
from sawlog.errors import ArgumentError
from sawlog.influence._averages import t_quantile
from sawlog.influence._rows import id_list
from sawlog.influence._top_k import TopK, check_top_k
from sawlog.records import Entries, Records
from sawlog.store._maintenance._remove import new_store

StrPath = str | os.PathLike[str]

_KEYS = {"influence": "values", "src_ids": "queries", "tgt_ids": "ids"}


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of training examples for queries.

    Args:
        queries: The ids of the queries, ``[q]``.
        ids: The ids of the examples: ``[n]`` if all have a score, ``[q, k]`` for the top k.
        values: The scores: ``[q, n]``, or ``[q, k]`` best first.
        layers: The scores of each layer, with the shape of ``values``, if requested. They sum to
            ``values``.
        about: How the scores were computed: mode, curvature, damping and so on.
        standard_errors: The standard error of each score, with the shape of ``values``, if known.
        members: The scores of each run or checkpoint, ``[m, q, n]``, if ``values`` is their mean
            and they were kept. The standard errors of sums over groups are computed from them.

    >>> scores = Scores(np.array(["q"]), np.array([7, 8]), np.array([[0.5, 2.0]]))
    >>> scores["q"]
    [(7, 0.5), (8, 2.0)]
    >>> scores.top(1)["q"]
    [(8, 2.0)]
    """

    queries: np.ndarray
    ids: np.ndarray
    values: np.ndarray
    layers: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    standard_errors: np.ndarray | None = None
    members: np.ndarray | None = None

    @property
    def whole(self) -> bool:
        """Whether every example has a score, not only the top k of each query."""
        return self.ids.ndim == 1

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, query: Any) -> Any:
        """Return the examples of a query with their scores, ``[(id, score), ...]``.

        As in LogIX, ``"influence"``, ``"src_ids"`` and ``"tgt_ids"`` return the values, the ids of
        the queries and those of the examples, unless a query has that id.
        """
        found = np.flatnonzero(self.queries == query)
        if not len(found):
            if isinstance(query, str) and query in _KEYS:
                return getattr(self, _KEYS[query])
            raise ArgumentError(f"There is no query {query!r}.")
        index = int(found[0])
        ids = self.ids if self.whole else self.ids[index]
        return list(zip(ids.tolist(), self.values[index].tolist(), strict=True))

    def top(self, k: int = 10, sign: str = "positive") -> Scores:
        """Return the best ``k`` scores of each query, best first.

        Args:
            k: How many to keep.
            sign: Which are best: ``"positive"``, ``"negative"`` or ``"absolute"``.

        Raises:
            ArgumentError: These scores are a top k already, with a smaller ``k`` or another sign.
        """
        check_top_k(k, sign)
        if not self.whole:
            return self._first(k, sign)
        best = TopK(k, sign)
        best.add(self.values, np.arange(len(self.ids)))
        assert best.scores is not None
        about = {**self.about, "top_k": int(k), "sign": sign}
        chosen = self._changed(
            lambda values: np.take_along_axis(values, _leading(best.ids, values), -1)
        )
        return dataclasses.replace(chosen, ids=self.ids[best.ids], values=best.scores, about=about)

    def _first(self, k: int, sign: str) -> Scores:
        """Return the first ``k`` of a top k."""
        kept, own = self.values.shape[1], self.about.get("sign", "positive")
        complete = kept < self.about.get("top_k", kept)  # there are no more examples
        if sign != own or (k > kept and not complete):
            raise ArgumentError(
                f"Only the best {kept} {own} scores of each query were kept, so the best {k} "
                f"{sign} ones are not known. Hint: attribute(..., top_k=None) returns all scores."
            )
        about = {**self.about, "top_k": int(k), "sign": sign}
        chosen = self._changed(lambda values: values[..., :k])
        return dataclasses.replace(chosen, ids=self.ids[:, :k], about=about)

    def select(self, queries: Iterable[Any]) -> Scores:
        """Return the scores of some queries by id, in this order."""
        rows = _indices(self.queries, queries, "query")
        ids = self.ids if self.whole else self.ids[rows]
        chosen = self._changed(lambda values: values[..., rows, :])
        return dataclasses.replace(chosen, queries=self.queries[rows], ids=ids)

    def group(self, of: Mapping[Any, Iterable[Any]] | None = None) -> Scores:
        """Sum the scores over all queries, or over each named group of query ids."""
        self._check_sums()
        named = (
            {"all": self.queries.tolist()} if of is None else {k: list(v) for k, v in of.items()}
        )
        rows = [_indices(self.queries, own, "query") for own in named.values()]

        def summed(values: np.ndarray) -> np.ndarray:
            return np.stack([values[..., own, :].sum(-2) for own in rows], -2)

        return dataclasses.replace(self._summed(summed), queries=np.array(list(named)))

    def of_groups(self, groups: Mapping[Any, Iterable[Any]]) -> Scores:
        """Sum the scores over each named group of example ids: the influence of a group."""
        self._check_sums()
        columns = [_indices(self.ids, own, "example") for own in groups.values()]

        def summed(values: np.ndarray) -> np.ndarray:
            return np.stack([values[..., own].sum(-1) for own in columns], -1)

        return dataclasses.replace(self._summed(summed), ids=np.array(list(groups)))

    def _changed(self, change: Callable[[np.ndarray], np.ndarray]) -> Scores:
        """Change the values, and all arrays that belong to them."""
        errors, members = self.standard_errors, self.members
        return dataclasses.replace(
            self,
            values=change(self.values),
            layers={name: change(values) for name, values in self.layers.items()},
            standard_errors=None if errors is None else change(errors),
            members=None if members is None else change(members),
        )

    def _summed(self, summed: Callable[[np.ndarray], np.ndarray]) -> Scores:
        """Sum the values. Errors of sums need the members: those of examples are correlated."""
        sums = dataclasses.replace(self, standard_errors=None)._changed(summed)
        if self.standard_errors is None or sums.members is None or self.members is None:
            return sums
        # Members may be correlated or trimmed: keep the ratio of the errors to their spread.
        own, new = spread(self.members), spread(sums.members)
        ratio = np.sqrt(np.sum(self.standard_errors**2) / max(float(np.sum(own**2)), 1e-300))
        return dataclasses.replace(sums, standard_errors=ratio * new)

    def _check_sums(self) -> None:
        if not self.whole or self.about.get("mode", "dot") != "dot":
            raise ArgumentError(
                "Sums over a group need all scores, as dot products. Hint: attribute(..., "
                'top_k=None, mode="dot").'
            )

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper end of a confidence interval of each score.

        Intervals are those of Student's t distribution, with ``about["degrees_of_freedom"]`` or, by
        default, one less than the number of members.

        Raises:
            ArgumentError: The standard errors are not known.
        """
        if self.standard_errors is None:
            raise ArgumentError(
                "These scores have no standard errors. Hint: through_training(..., runs=10), or an "
                "ensemble of several checkpoints."
            )
        members = np.inf if self.members is None else len(self.members) - 1
        half = t_quantile(level, self.about.get("degrees_of_freedom", members))
        reach = half * self.standard_errors
        return self.values - reach, self.values + reach

    # -- display ----------------------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """Return a data frame: ``query``, ``rank``, ``id``, ``score``, and a column per layer.

        ``rank`` is omitted if every example has a score. ``standard_error`` is included if known.
        """
        pandas: Any = require("pandas", "arrow", "Scores.to_pandas()")
        count = self.values.shape[1]
        ids = np.broadcast_to(self.ids, self.values.shape).ravel()
        errors = self.standard_errors
        columns = {
            "query": np.repeat(self.queries, count),
            "rank": np.tile(np.arange(count), len(self)),
            "id": ids,
            "score": self.values.ravel(),
            **({} if errors is None else {"standard_error": errors.ravel()}),
            **{name: values.ravel() for name, values in self.layers.items()},
        }
        if self.whole:
            del columns["rank"]
        return pandas.DataFrame(columns)

    def __rich__(self) -> Table:
        shown = self.top(5) if self.whole else self
        table = Table(title=f"{len(self)} queries, {self.values.shape[1]} examples each")
        table.add_column("query")
        for rank in range(min(5, shown.values.shape[1])):
            table.add_column(str(rank + 1), justify="right")
        for i, query in enumerate(self.queries[:20].tolist()):
            cells = [
                Text(printable(f"{name}  {value:.3g}"))
                for name, value in zip(
                    shown.ids[i].tolist()[:5], shown.values[i].tolist()[:5], strict=True
                )
            ]
            table.add_row(Text(printable(str(query))), *cells)
        return table

    def plot(self, query: Any = None, *, path: StrPath | None = None, most: int = 10) -> Any:
        """Draw the best and worst examples of a query as bars.

        Args:
            query: The id of the query; the first by default.
            path: Where to save the figure, if given.
            most: How many of the best, and of the worst, to draw.

        Returns:
            A matplotlib figure.
        """
        from sawlog.influence._plot import bars

        return bars(self, self.queries[0] if query is None else query, path=path, most=most)

    # -- on disk ----------------------------------------------------------------------------------

    def save(self, path: StrPath) -> None:
        """Write the scores to a store, replacing other scores; :func:`load_scores` reads them.

        Raises:
            ArgumentError: ``path`` is a store that does not contain scores.
            StoreExistsError: ``path`` exists and is not a store.
        """
        if (Path(path) / "store.json").exists():
            _check_scores(path)
        arrays = {"queries": self.queries, "ids": self.ids, "values": self.values}
        arrays |= {f"layer/{name}": values for name, values in self.layers.items()}
        extra = {"standard_errors": self.standard_errors, "members": self.members}
        arrays |= {name: values for name, values in extra.items() if values is not None}
        texts = [name for name in ("queries", "ids") if arrays[name].dtype.kind == "U"]
        meta = {"scores": 1, "about": dict(self.about), "texts": texts}
        with (
            new_store(path) as aside,
            store.create(aside, meta=meta, interval=None) as writer,
        ):
            writer.write(Records({n: Entries(_encoded(a)[None]) for n, a in arrays.items()}))


def load_scores(path: StrPath) -> Scores:
    """Load scores that were saved.

    Raises:
        StoreNotFoundError: ``path`` does not exist.
        ArgumentError: ``path`` is a store that does not contain scores.
    """
    _check_scores(path)
    with store.open(path) as reader:
        arrays = {
            series.column.name: np.array(reader.read(series.column.name)[0])
            for series in reader.schema.series
        }
        for name in reader.meta["texts"]:
            arrays[name] = _decoded(arrays[name])
        layers = {n.removeprefix("layer/"): a for n, a in arrays.items() if n.startswith("layer/")}
        about = reader.meta["about"]
        return Scores(
            arrays["queries"],
            arrays["ids"],
            arrays["values"],
            layers,
            about,
            arrays.get("standard_errors"),
            arrays.get("members"),
        )


def spread(members: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean of independent members, ``[m, ...] -> [...]``."""
    count = len(members)
    if count < 2:
        return np.full(members.shape[1:], np.nan)
    return np.std(members, axis=0, ddof=1) / np.sqrt(count)


def _leading(indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Add leading axes, so that ``[q, k]`` indices select from ``[m, q, n]``."""
    return indices.reshape((1,) * (values.ndim - indices.ndim) + indices.shape)


def _check_scores(path: StrPath) -> None:
    with store.open(path) as reader:
        if "scores" not in reader.meta:
            raise ArgumentError(f"The store at {Path(path)} does not contain scores.")


def _encoded(array: np.ndarray) -> np.ndarray:
    """Encode strings as code points, because a series of a store holds numbers."""
    if array.dtype.kind != "U":
        return array
    array = np.ascontiguousarray(array)
    return array.view(np.uint32).reshape(*array.shape, array.dtype.itemsize // 4)


def _decoded(array: np.ndarray) -> np.ndarray:
    size = max(1, array.shape[-1])
    return np.ascontiguousarray(array).view(f"<U{size}").reshape(array.shape[:-1])


def _indices(ids: np.ndarray, wanted: Iterable[Any], what: str) -> list[int]:
    """Return the index of each wanted id."""
    index = {each: i for i, each in enumerate(ids.tolist())}
    own = id_list(wanted)
    missing = [each for each in own if each not in index]
    if missing:
        raise ArgumentError(f"There is no {what} {', '.join(map(repr, missing[:5]))}.")
    return [index[each] for each in own]


def ensemble(several: Sequence[Scores], weights: Sequence[float] | None = None) -> Scores:
    """Average the scores of several checkpoints, or sum them with weights.

    Queries and examples are matched by id, and returned in the order of the first. Scores of
    layers are included if all have the same layers.

    Args:
        several: Scores of all examples.
        weights: One factor for each; by default ``1 / len(several)``.

    Raises:
        ArgumentError: Queries, examples or modes differ, or some are a top k.
    """
    if not several:
        raise ArgumentError("`several` must contain at least one Scores.")
    for each in several:
        _check_comparable(each, several[0])
    shares = [1 / len(several)] * len(several) if weights is None else list(weights)
    if len(shares) != len(several):
        raise ArgumentError(f"There are {len(shares)} weights for {len(several)} Scores.")
    first = several[0]
    orders = [
        np.ix_(
            _indices(each.queries, first.queries.tolist(), "query"),
            _indices(each.ids, first.ids.tolist(), "example"),
        )
        for each in several
    ]

    def summed(matrices: Iterable[np.ndarray]) -> np.ndarray:
        total = np.zeros(first.values.shape)
        for share, matrix, order in zip(shares, matrices, orders, strict=True):
            total += share * matrix[order]
        return total

    alike = all(set(each.layers) == set(first.layers) for each in several)
    layers = {n: summed(e.layers[n] for e in several) for n in (first.layers if alike else ())}
    about = {**first.about, "ensemble": len(several)}
    return Scores(first.queries, first.ids, summed(each.values for each in several), layers, about)


def _check_comparable(each: Scores, first: Scores) -> None:
    if not each.whole or set(each.ids.tolist()) != set(first.ids.tolist()):
        raise ArgumentError(
            "An ensemble needs the scores of all examples, and the same examples. Hint: "
            "attribute(..., top_k=None), then ensemble(...).top(k)."
        )
    if set(each.queries.tolist()) != set(first.queries.tolist()):
        raise ArgumentError("The scores of an ensemble have different queries.")
    modes = {one.about.get("mode", "dot") for one in (each, first)}
    if len(modes) > 1:
        raise ArgumentError(f"The scores of an ensemble must have one mode; got {sorted(modes)}.")

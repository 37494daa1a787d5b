"""``Scores``: what attribution found, as a matrix or the best of each query."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from sawlog import store
from sawlog._optional import require
from sawlog._text import printable
from sawlog.errors import ArgumentError
from sawlog.influence._top_k import TopK, check_top_k
from sawlog.records import Entries, Records
from sawlog.store._removal import new_store

StrPath = str | os.PathLike[str]

_KEYS = {"influence": "values", "src_ids": "queries", "tgt_ids": "ids"}


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of training examples for queries.

    Args:
        queries: the ids of the queries, ``[q]``.
        ids: those of the examples: ``[n]`` of a matrix, ``[q, k]`` of the best of each query.
        values: ``[q, n]`` or ``[q, k]``, best first.
        layers: the same for each layer, if that was asked for; they add up to the values.
        about: how they were made.
    """

    queries: np.ndarray
    ids: np.ndarray
    values: np.ndarray
    layers: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every example has a score, or only the best of each query."""
        return self.ids.ndim == 1

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, query: Any) -> Any:
        """The examples of one query, by its id, with their scores: ``[(id, score), ...]``.

        ``"influence"``, ``"src_ids"`` and ``"tgt_ids"`` are the values, the ids of queries and
        those of examples, unless a query has that id.
        """
        places = np.flatnonzero(self.queries == query)
        if not len(places):
            if isinstance(query, str) and query in _KEYS:
                return getattr(self, _KEYS[query])
            raise ArgumentError(f"There is no query {query!r}.")
        place = int(places[0])
        ids = self.ids if self.whole else self.ids[place]
        return list(zip(ids.tolist(), self.values[place].tolist(), strict=True))

    def top(self, k: int = 10, sign: str = "positive") -> Scores:
        """The best ``k`` of each query: ``"positive"``, ``"negative"``, or ``"absolute"``."""
        check_top_k(k, sign)
        if not self.whole:
            return self._first(k, sign)
        best = TopK(k, sign)
        best.add(self.values, np.arange(len(self.ids)))
        assert best.scores is not None
        layers = {n: np.take_along_axis(v, best.ids, 1) for n, v in self.layers.items()}
        about = {**self.about, "top_k": int(k), "sign": sign}
        return Scores(self.queries, self.ids[best.ids], best.scores, layers, about)

    def _first(self, k: int, sign: str) -> Scores:
        """The first ``k`` of those that are the best already."""
        there, own = self.values.shape[1], self.about.get("sign", "positive")
        complete = there < self.about.get("top_k", there)  # there are no more examples
        if sign != own or (k > there and not complete):
            raise ArgumentError(
                f"These are the best {there} of each query already, the {own} ones, so the best "
                f"{k} {sign} ones are not known. Hint: attribute(..., top_k=None) gives all scores."
            )
        layers = {name: values[:, :k] for name, values in self.layers.items()}
        about = {**self.about, "top_k": int(k), "sign": sign}
        return Scores(self.queries, self.ids[:, :k], self.values[:, :k], layers, about)

    def select(self, queries: Iterable[Any]) -> Scores:
        """The scores of some queries, by their ids, in this order."""
        rows = _places(self.queries, queries, "query")
        layers = {name: values[rows] for name, values in self.layers.items()}
        ids = self.ids if self.whole else self.ids[rows]
        return Scores(self.queries[rows], ids, self.values[rows], layers, self.about)

    def group(self, of: Mapping[Any, Iterable[Any]] | None = None) -> Scores:
        """Scores for the sum over queries: of all of them, or of each named group of ids."""
        self._check_sums()
        named = (
            {"all": self.queries.tolist()} if of is None else {k: list(v) for k, v in of.items()}
        )
        rows = [_places(self.queries, own, "query") for own in named.values()]

        def summed(values: np.ndarray) -> np.ndarray:
            return np.stack([values[own].sum(0) for own in rows])

        layers = {name: summed(values) for name, values in self.layers.items()}
        return Scores(np.array(list(named)), self.ids, summed(self.values), layers, self.about)

    def of_groups(self, groups: Mapping[Any, Iterable[Any]]) -> Scores:
        """The influence of groups of training examples: the sum of the scores of each set."""
        self._check_sums()
        columns = [_places(self.ids, own, "example") for own in groups.values()]

        def summed(values: np.ndarray) -> np.ndarray:
            return np.stack([values[:, own].sum(1) for own in columns], 1)

        layers = {name: summed(values) for name, values in self.layers.items()}
        return Scores(self.queries, np.array(list(groups)), summed(self.values), layers, self.about)

    def _check_sums(self) -> None:
        if not self.whole or self.about.get("mode", "dot") != "dot":
            raise ArgumentError(
                "Sums over a set need all scores, and dot products. Hint: attribute(..., "
                'top_k=None, mode="dot").'
            )

    # -- to look at -------------------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """A table with the columns ``query``, ``rank``, ``id``, ``score``, and one a layer."""
        pandas: Any = require("pandas", "arrow", "Scores.to_pandas()")
        count = self.values.shape[1]
        ids = np.broadcast_to(self.ids, self.values.shape).ravel()
        columns = {
            "query": np.repeat(self.queries, count),
            "rank": np.tile(np.arange(count), len(self)),
            "id": ids,
            "score": self.values.ravel(),
            **{name: values.ravel() for name, values in self.layers.items()},
        }
        if self.whole:
            del columns["rank"]
        return pandas.DataFrame(columns)

    def __rich__(self) -> Table:
        shown = self.top(5) if self.whole else self
        table = Table(title=f"{len(self)} queries, {self.values.shape[1]} examples of each")
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
        """Draw the best and worst examples of a query as bars; by default of the first.

        Returns the figure of matplotlib; ``path`` saves it.
        """
        from sawlog.influence._plot import bars

        return bars(self, self.queries[0] if query is None else query, path=path, most=most)

    # -- on disk ----------------------------------------------------------------------------------

    def save(self, path: StrPath) -> None:
        """Write them to a store, in the place of other scores; :func:`load_scores` reads them.

        Raises:
            ArgumentError: there is a store of something else.
            StoreExistsError: there is something that is no store.
        """
        if (Path(path) / "store.json").exists():
            _check_scores(path)
        arrays = {"queries": self.queries, "ids": self.ids, "values": self.values}
        arrays |= {f"layer/{name}": values for name, values in self.layers.items()}
        texts = [name for name in ("queries", "ids") if arrays[name].dtype.kind == "U"]
        meta = {"scores": 1, "about": dict(self.about), "texts": texts}
        with (
            new_store(path) as aside,
            store.create(aside, meta=meta, interval=None) as writer,
        ):
            writer.write(Records({n: Entries(_coded(a)[None]) for n, a in arrays.items()}))


def load_scores(path: StrPath) -> Scores:
    """Scores that were saved.

    Raises:
        StoreNotFoundError: there is nothing.
        ArgumentError: there is a store of something else.
    """
    _check_scores(path)
    with store.open(path) as reader:
        arrays = {
            series.column.name: np.array(reader.read(series.column.name)[0])
            for series in reader.schema.series
        }
        for name in reader.meta["texts"]:
            arrays[name] = _texts(arrays[name])
        layers = {n.removeprefix("layer/"): a for n, a in arrays.items() if n.startswith("layer/")}
        about = reader.meta["about"]
        return Scores(arrays["queries"], arrays["ids"], arrays["values"], layers, about)


def _check_scores(path: StrPath) -> None:
    with store.open(path) as reader:
        if "scores" not in reader.meta:
            raise ArgumentError(f"{Path(path)} is the store of something else than scores.")


def _coded(array: np.ndarray) -> np.ndarray:
    """An array as a store takes it: texts as the numbers of their characters."""
    if array.dtype.kind != "U":
        return array
    array = np.ascontiguousarray(array)
    return array.view(np.uint32).reshape(*array.shape, array.dtype.itemsize // 4)


def _texts(array: np.ndarray) -> np.ndarray:
    size = max(1, array.shape[-1])
    return np.ascontiguousarray(array).view(f"<U{size}").reshape(array.shape[:-1])


def _places(ids: np.ndarray, wanted: Iterable[Any], what: str) -> list[int]:
    """Where some ids are among others."""
    places = {each: i for i, each in enumerate(ids.tolist())}
    own = _plain(wanted)
    lacking = [each for each in own if each not in places]
    if lacking:
        raise ArgumentError(f"There is no {what} {', '.join(map(repr, lacking[:5]))}.")
    return [places[each] for each in own]


def _plain(ids: Iterable[Any]) -> list[Any]:
    """Ids as Python has them."""
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def ensemble(several: Sequence[Scores], weights: Sequence[float] | None = None) -> Scores:
    """The mean of the scores of several checkpoints, or their sum with these weights.

    Queries and examples are those of the first, in its order, whatever the order of the others.
    If all of them have the scores of the same layers, those are joined as well.

    Raises:
        ArgumentError: they are not whole matrices of the same queries and examples, by one mode.
    """
    if not several:
        raise ArgumentError("An ensemble needs at least one matrix of scores.")
    for each in several:
        _check_alike(each, several[0])
    shares = [1 / len(several)] * len(several) if weights is None else list(weights)
    if len(shares) != len(several):
        raise ArgumentError(f"There are {len(shares)} weights for {len(several)} matrices.")
    first = several[0]
    orders = [
        np.ix_(
            _places(each.queries, first.queries.tolist(), "query"),
            _places(each.ids, first.ids.tolist(), "example"),
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


def _check_alike(each: Scores, first: Scores) -> None:
    if not each.whole or set(each.ids.tolist()) != set(first.ids.tolist()):
        raise ArgumentError(
            "An ensemble is made of whole matrices with the same examples. Hint: "
            "attribute(..., top_k=None), and then ensemble(...).top(k)."
        )
    if set(each.queries.tolist()) != set(first.queries.tolist()):
        raise ArgumentError("The matrices of an ensemble have different queries.")
    modes = {said.about.get("mode", "dot") for said in (each, first)}
    if len(modes) > 1:
        raise ArgumentError(f"The scores of an ensemble are of one mode, got {sorted(modes)}.")

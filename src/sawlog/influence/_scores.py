"""``Scores``: the result of attribution, as a matrix or the top k of each query."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog._optional import require
from sawlog._rich import Table, Text
from sawlog._text import printable_name
from sawlog.errors import ArgumentError
from sawlog.influence._averages._average import t_quantile
from sawlog.influence._rows import id_list
from sawlog.influence._top_k import TopK, check_top_k
from sawlog.influence._validation._validation import Validation
from sawlog.records import Entries, Records
from sawlog.store._format import _parse
from sawlog.store._format._store_notes import parsing
from sawlog.store._maintenance._remove import new_store

StrPath = str | os.PathLike[str]

_KEYS = {"influence": "values", "src_ids": "queries", "tgt_ids": "ids"}


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of training examples for queries.

    Args:
        queries: the ids of the queries, ``[q]``.
        ids: the ids of the examples: ``[n]`` if all have a score, ``[q, k]`` for the top k.
        values: the scores: ``[q, n]``, or ``[q, k]`` best first.
        layers: the scores of each layer, with the shape of ``values``, if requested. They sum to
            ``values``.
        about: how the scores were computed: mode, curvature, damping and so on.
        standard_errors: the standard error of each score, with the shape of ``values``, if known.
        members: the scores of each run or checkpoint, ``[m, q, n]``, if ``values`` is their mean
            and they were kept. The standard errors of sums over groups are computed from them.
        validation: what retraining said about the scores, after :func:`validate`. It is that of
            all scores of these queries: sums over groups and other queries have none.

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
    validation: Validation | None = None

    @property
    def whole(self) -> bool:
        """Whether every example has a score, not only the top k of each query."""
        return self.ids.ndim == 1

    def __len__(self) -> int:
        return len(self.queries)

    def __repr__(self) -> str:
        what = "examples" if self.whole else "best examples"
        parts = [f"{len(self)} queries x {self.values.shape[1]} {what}"]
        parts += [str(self.about[n]) for n in ("curvature", "mode") if self.about.get(n)]
        parts += [] if self.standard_errors is None else ["with standard errors"]
        parts += [] if self.validation is None else [str(self.validation)]
        return f"Scores({', '.join(parts)})"

    def __getitem__(self, query: Any) -> Any:
        """Return the examples of a query with their scores, ``[(id, score), ...]``.

        As in LogIX, ``"influence"``, ``"src_ids"`` and ``"tgt_ids"`` return the values, the ids of
        the queries and those of the examples, unless a query has that id.
        """
        found = np.flatnonzero(self.queries == query)
        if not len(found):
            if isinstance(query, str) and query in _KEYS:
                return getattr(self, _KEYS[query])
            raise ArgumentError(_unknown("query", [query], self.queries.tolist()))
        index = int(found[0])
        ids = self.ids if self.whole else self.ids[index]
        return list(zip(ids.tolist(), self.values[index].tolist(), strict=True))

    def top(self, k: int = 10, sign: str = "positive") -> Scores:
        """Return the best ``k`` scores of each query, best first.

        Args:
            k: how many to keep.
            sign: which are best: ``"positive"``, ``"negative"`` or ``"absolute"``.

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
        rows = indices_of(self.queries, queries, "query")
        ids = self.ids if self.whole else self.ids[rows]
        chosen = self._changed(lambda values: values[..., rows, :])
        return dataclasses.replace(chosen, queries=self.queries[rows], ids=ids, validation=None)

    def group(self, of: Mapping[Any, Iterable[Any]] | None = None) -> Scores:
        """Sum the scores over all queries, or over each named group of query ids."""
        self._check_sums()
        named = (
            {"all": self.queries.tolist()} if of is None else {k: list(v) for k, v in of.items()}
        )
        rows = [indices_of(self.queries, own, "query") for own in named.values()]

        def summed(values: np.ndarray) -> np.ndarray:
            return np.stack([values[..., own, :].sum(-2) for own in rows], -2)

        return dataclasses.replace(self._summed(summed), queries=np.array(list(named)))

    def of_groups(self, groups: Mapping[Any, Iterable[Any]]) -> Scores:
        """Sum the scores over each named group of example ids: the influence of a group."""
        self._check_sums()
        columns = [indices_of(self.ids, own, "example") for own in groups.values()]

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
        alone = dataclasses.replace(self, standard_errors=None, validation=None)
        sums = alone._changed(summed)
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
        said = None if self.validation is None else str(self.validation)
        head = f"{len(self)} queries, {self.values.shape[1]} examples each"
        table = Table(title=head, caption=said)
        table.add_column("query")
        for rank in range(min(5, shown.values.shape[1])):
            table.add_column(str(rank + 1), justify="right")
        for i, query in enumerate(self.queries[:20].tolist()):
            cells = [
                Text(f"{printable_name(name)}  {value:.3g}")
                for name, value in zip(
                    shown.ids[i].tolist()[:5], shown.values[i].tolist()[:5], strict=True
                )
            ]
            table.add_row(Text(printable_name(query)), *cells)
        return table

    def _repr_html_(self) -> str:
        """Return the best examples of each query as a small table for notebooks."""
        from sawlog.influence._notebook import scores_html

        return scores_html(self)

    def plot(self, query: Any = None, *, path: StrPath | None = None, most: int = 10) -> Any:
        """Draw the best and worst examples of a query as bars.

        Args:
            query: the id of the query; the first by default.
            path: where to save the figure, if given.
            most: how many of the best, and of the worst, to draw.

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
        meta |= {} if self.validation is None else {"validation": self.validation.to_json()}
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
    with store.open(path) as reader, parsing(reader.path, "scores"):
        return _scores_in(reader)


def _scores_in(reader: store.Reader) -> Scores:
    arrays = {
        series.column.name: np.array(reader.read(series.column.name)[0])
        for series in reader.schema.series
    }
    for name in reader.meta["texts"]:
        arrays[name] = _decoded(arrays[name])
    layers = {n.removeprefix("layer/"): a for n, a in arrays.items() if n.startswith("layer/")}
    said = reader.meta.get("validation")
    return Scores(
        arrays["queries"],
        arrays["ids"],
        arrays["values"],
        layers,
        _parse.mapping(reader.meta["about"], "'about'"),
        standard_errors=arrays.get("standard_errors"),
        members=arrays.get("members"),
        validation=None if said is None else Validation.from_json(said),
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
            raise ArgumentError(
                f"The store at {Path(path)} does not contain scores. Hint: scores.save(path) "
                "writes them."
            )


def _encoded(array: np.ndarray) -> np.ndarray:
    """Encode strings as code points, because a series of a store holds numbers."""
    if array.dtype.kind != "U":
        return array
    array = np.ascontiguousarray(array)
    return array.view(np.uint32).reshape(*array.shape, array.dtype.itemsize // 4)


def _decoded(array: np.ndarray) -> np.ndarray:
    size = max(1, array.shape[-1])
    return np.ascontiguousarray(array).view(f"<U{size}").reshape(array.shape[:-1])


def indices_of(ids: np.ndarray, wanted: Iterable[Any], what: str) -> list[int]:
    """Return the index of each wanted id."""
    index = {each: i for i, each in enumerate(ids.tolist())}
    own = id_list(wanted)
    missing = [each for each in own if each not in index]
    if missing:
        raise ArgumentError(_unknown(what, missing, index))
    return [index[each] for each in own]


def _unknown(what: str, missing: Iterable[Any], known: Iterable[Any]) -> str:
    """Return the message for queries or examples that the scores do not have."""
    listed = [repr(each) for each in itertools.islice(known, 6)]
    more = [*listed[:5], "..."] if len(listed) > 5 else listed
    return (
        f"There is no {what} {', '.join(map(repr, list(missing)[:5]))}. "
        f"Hint: the ids are {', '.join(more) or 'empty'}."
    )

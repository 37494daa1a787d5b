"""``Bank``: the answers of retrained models, in a store that several processes can fill."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import _progress as bars
from sawlog import store
from sawlog._validate import fraction, one_of, positive_integer
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.influence._validation._subset import Subset, random_subsets
from sawlog.influence._validation._trainer import Measure, Train, Trainer
from sawlog.store._format._layout import is_store
from sawlog.store._writing._shared_work import WAIT, SharedWork

StrPath = str | os.PathLike[str]
BETTER = ("lower", "higher")
ASK_AGAIN = 0.5  # seconds after which to ask which models other processes have trained


@dataclasses.dataclass(frozen=True)
class BankModels:
    """Retrained models.

    Args:
        keys: their names, ``[m]``.
        subsets: the subset of each, ``[m]``.
        answers: the metric of each query after training on it, ``[m, queries]``.
    """

    keys: list[str]
    subsets: list[Subset]
    answers: np.ndarray

    def by_subset(self) -> dict[str, list[int]]:
        """Return the places of the models of each subset, by the name of the subset."""
        found: dict[str, list[int]] = {}
        for place, key in enumerate(self.keys):
            found.setdefault(key.rpartition("-")[0], []).append(place)
        return found


class Bank:
    """Metrics of queries after training on subsets of the data, in a store.

    The store is created if it does not exist. Any number of processes may fill it at the same
    time; they share the work. A model that was trained is never trained again.

    Args:
        path: the folder of the store.
        ids: the ids of all training examples; those of the store by default.
        queries: the ids of the queries; those of the store by default.
        better: whether a ``"lower"`` or a ``"higher"`` metric is better; ``"lower"`` by default.
        settings: JSON values that the metrics depend on, such as the learning rate. A bank with
            other settings is refused.

    Raises:
        ArgumentError: the store is not a bank, or one of other examples, queries or settings.
        StoreNotFoundError: the store does not exist, and ``ids`` or ``queries`` is not given.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        ids: Any = None,
        queries: Any = None,
        better: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        if better is not None:
            one_of("better", better, BETTER)
        if ids is not None and queries is not None and not is_store(self.path):
            meta = {
                "bank": 1,
                "ids": np.asarray(ids).tolist(),
                "queries": np.asarray(queries).tolist(),
                "better": better or "lower",
                "settings": dict(settings or {}),
            }
            store.create(path, duplicates="first", nan="error", exists="append", meta=meta).close()
        elif not is_store(self.path):
            raise StoreNotFoundError(
                f"There is no bank of retrained models at {self.path}. Hint: validate(scores, "
                "train, bank=PATH), or sawlog validate with --train, creates one."
            )
        with store.open(path) as reader:
            meta = reader.meta
        if "bank" not in meta:
            raise ArgumentError(
                f"The store at {self.path} is not a bank of retrained models. Hint: "
                "validate(scores, train, bank=PATH) creates one."
            )
        self.ids, self.queries = np.array(meta["ids"]), np.array(meta["queries"])
        self.better: str = meta["better"]
        self.settings: dict[str, Any] = meta["settings"]
        self.check(ids, queries)
        self.check_settings(better, settings)

    def check(self, ids: Any, queries: Any) -> None:
        """Raise an ArgumentError unless the bank is one of these examples and has these queries."""
        self._check_ids("training examples", self.ids, ids, same=True)
        self._check_ids("queries", self.queries, queries, same=False)

    def check_settings(self, better: str | None, settings: Mapping[str, Any] | None) -> None:
        """Raise an ArgumentError if the models were trained or measured in another way."""
        self._check("better", self.better, better)
        given = None if settings is None else json.loads(json.dumps(dict(settings)))
        self._check("settings", self.settings, given)

    def __repr__(self) -> str:
        sizes = f"{len(self.ids)} examples, {len(self.queries)} queries"
        return f"Bank({str(self.path)!r}, {sizes}, {len(self)} models)"

    def __len__(self) -> int:
        """Return the number of models."""
        with store.open(self.path) as reader:
            return len(reader.ids()) if reader.names else 0

    def _check(self, name: str, ours: Any, given: Any) -> None:
        if given is not None and given != ours:
            raise ArgumentError(
                f"The bank at {self.path} has {name}={ours!r}; got {given!r}. Hint: models that "
                "are trained or measured in another way need another bank."
            )

    def _check_ids(self, what: str, ours: np.ndarray, given: Any, *, same: bool) -> None:
        if given is None:
            return
        known, wanted = set(ours.tolist()), set(np.asarray(given).tolist())
        unknown = sorted(wanted - known, key=str)
        missing = sorted(known - wanted, key=str) if same else []
        for odd, how in ((unknown, "does not have"), (missing, "has also")):
            if odd:
                raise ArgumentError(
                    f"The bank at {self.path} is one of other {what}: it {how} "
                    f"{', '.join(map(repr, odd[:5]))}. Hint: use another bank=."
                )

    def retrain(
        self,
        train: Train,
        *,
        measure: Measure | None = None,
        drop: float = 0.5,
        subsets: int = 100,
        seeds: int = 5,
        together: int = 1,
        draw: int = 0,
        progress: bool = False,
    ) -> int:
        """Train models on random subsets, before there are any scores.

        Metrics are in the order of :attr:`queries`. See :func:`validate` for the arguments, which
        later trains nothing if they are the same, except for groups.

        Returns:
            How many models this call trained; other processes may have trained the others.
        """
        positive_integer("together", together)
        trainer = Trainer(train, measure, together, self.ids, self.queries)
        count = positive_integer("subsets", subsets)
        wanted = random_subsets(len(self.ids), fraction("drop", drop), count, draw)
        return self.fill(wanted, positive_integer("seeds", seeds), trainer, progress=progress)

    def fill(
        self,
        subsets: Sequence[Subset],
        seeds: int,
        trainer: Trainer,
        *,
        progress: bool = False,
    ) -> int:
        """Train the models that are missing; return how many this process trained.

        Each model is trained by one of the processes that run at the same time. What a process was
        training when it was killed is trained by another one, or by the next call.

        Raises:
            ArgumentError: The trainer has other queries than the bank.
        """
        order = self._order(trainer)
        wanted = {s.key(repeat): (s, repeat) for s in subsets for repeat in range(seeds)}
        random, trained, counted = np.random.default_rng(), 0, 0
        with (
            SharedWork(self.path) as claims,  # left after the writer has published
            store.open(self.path, "append") as writer,
            bars.shown("retraining", len(wanted), quiet=not progress, unit="models") as bar,
        ):

            def is_done(key: str) -> bool:
                return not writer.missing([key])

            while missing := writer.missing(list(wanted)):
                bar.advance(len(wanted) - len(missing) - counted)
                counted, asked = len(wanted) - len(missing), time.monotonic()
                todo = random.permutation(sorted(missing)).tolist()
                found = 0
                while todo and (not found or time.monotonic() - asked < ASK_AGAIN):
                    alike = _alike(todo, wanted)
                    keys = claims.take(alike, trainer.together, is_done)
                    if keys:
                        jobs = [wanted[key] for key in keys]
                        writer.append(keys, _columns(jobs, trainer.run(jobs)[:, order]))
                        found += len(keys)
                    tried = {*alike} if len(keys) < trainer.together else {*keys}
                    todo = [key for key in todo if key not in tried]
                trained += found
                writer.flush()
                claims.done()
                if not found:  # other processes train all that is missing
                    time.sleep(WAIT)
            bar.advance(len(wanted) - counted)
        return trained

    def _order(self, trainer: Trainer) -> list[int]:
        """Return where the queries of the bank are among the metrics of a trainer."""
        place = {each: i for i, each in enumerate(trainer.queries.tolist())}
        if place.keys() != set(self.queries.tolist()):
            raise ArgumentError(
                f"The bank at {self.path} has the metrics of {len(self.queries)} queries, and "
                f"these scores have {len(place)} of them: training must measure all. Hint: scores "
                "of all queries; or leave out train= to use the models that exist."
            )
        return [place[each] for each in self.queries.tolist()]

    def models(self) -> BankModels:
        """Return all models that the store contains now."""
        with store.open(self.path) as reader:
            if not reader.names:
                return BankModels([], [], np.zeros((0, len(self.queries))))
            keys = sorted(reader.ids())
            found = reader.gather(keys)
        bits = np.unpackbits(found["left_out"], axis=1, count=len(self.ids)).astype(bool)
        subsets = [Subset(own, int(n)) for own, n in zip(bits, found["subset"], strict=True)]
        return BankModels(keys, subsets, np.array(found["answers"]))


def _alike(todo: Sequence[str], wanted: Mapping[str, tuple[Subset, int]]) -> list[str]:
    """Return the models whose subsets have the size of the first."""
    size = wanted[todo[0]][0].size
    return [key for key in todo if wanted[key][0].size == size]


def _columns(jobs: Sequence[tuple[Subset, int]], answers: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "answers": answers,
        "left_out": np.stack([subset.packed for subset, _ in jobs]),
        "subset": np.array([subset.number for subset, _ in jobs]),
        "seed": np.array([subset.seed(repeat) for subset, repeat in jobs]),
    }

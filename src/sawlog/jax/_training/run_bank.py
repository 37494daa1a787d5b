"""The scores of finished runs, in memory or in a store from which a second call resumes."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog import store
from sawlog.errors import ArgumentError
from sawlog.influence._averages._average import Average, average
from sawlog.jax._training.deterministic import constants
from sawlog.jax._training.replay import PARTS
from sawlog.jax._training.runner import RunScores
from sawlog.store._writing._shared_work import WAIT, SharedWork

_ARRAYS = ("parts", "metrics", "weights")
_GUESSES = "guesses"  # how many of the parts are guesses: the last ones


class RunBank:
    """Scores of runs by number.

    Several processes may fill one store. Each run is trained by the process that claims it; the
    claims of a process that was killed are free.

    Args:
        path: A store for them, or None.
        about: What the runs depend on; a store of other runs is refused.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self._runs: dict[int, RunScores] = {}
        self._writer: Any = None
        if path is None:
            return
        meta = {"through_training": about}
        self._writer = store.create(
            path, meta=meta, duplicates="first", interval=None, exists="append"
        )
        self._check(path, about)
        self._reader = store.open(path)
        self._claims = SharedWork(path)
        self.refresh()

    def _check(self, path: Path, about: dict[str, Any]) -> None:
        found = self._writer.meta.get("through_training")
        if found == about:
            return
        self._writer.close()
        if found is None:
            raise ArgumentError(
                f"The store at {path} does not contain training runs. Hint: give another path."
            )
        other = [name for name in about if found.get(name) != about[name]]
        raise ArgumentError(
            f"The store at {path} has runs of another program: {', '.join(other)} differ. Hint: "
            "give another path, or remove the folder."
        )

    def refresh(self) -> None:
        """Read the runs that other processes have finished."""
        if self._writer is None:
            return
        self._reader.refresh()
        if not self._reader.schema.tables:
            return
        ids = sorted(set(self._reader.ids().tolist()) - self._runs.keys())
        if not ids:
            return
        rows = self._reader.gather(ids)
        for at, run in enumerate(ids):
            parts, metrics, weights = (np.array(rows[name][at]) for name in _ARRAYS)
            known = len(parts) - int(rows[_GUESSES][at])
            own, guesses = trimmed(parts[:known]), parts[known:]
            seconds = float(rows["seconds"][at])
            self._runs[run] = RunScores(run, own, guesses, metrics, weights, seconds)

    def take(self, runs: int, most: int) -> list[int]:
        """Claim up to ``most`` runs that are missing; wait a moment if others train all of them."""
        missing = [run for run in range(runs) if run not in self]
        if self._writer is None:
            return missing[:most]
        taken = self._claims.take(map(str, missing), most, self._is_done)
        if missing and not taken:
            time.sleep(WAIT)
            self.refresh()
        return [int(name) for name in taken]

    def _is_done(self, name: str) -> bool:
        self.refresh()
        return int(name) in self

    def done(self) -> None:
        """Leave the claims of runs that were put."""
        if self._writer is not None:
            self._claims.done()

    def __contains__(self, run: int) -> bool:
        return run in self._runs

    def __len__(self) -> int:
        return len(self._runs)

    def put(self, result: RunScores) -> None:
        """Keep a run; durable when this returns, if there is a store."""
        result = dataclasses.replace(result, parts=trimmed(result.parts))
        self._runs[result.run] = result
        if self._writer is not None:
            rows = {name: getattr(result, name)[None] for name in _ARRAYS}
            parts = padded(result.parts, PARTS)
            rows["parts"] = np.concatenate([parts, result.guesses.astype(parts.dtype)])[None]
            rows[_GUESSES] = np.array([len(result.guesses)])
            self._writer.append([result.run], {**rows, "seconds": np.array([result.seconds])})
            self._writer.flush()

    def results(self, runs: int) -> list[RunScores]:
        """Return the known runs below ``runs``, in order."""
        return [self._runs[run] for run in sorted(self._runs) if run < runs]

    def average(self, runs: int, kind: str, paired: bool) -> Average:
        """Average the finished runs below ``runs``."""
        done = self.results(runs)
        if paired:  # pairs first: of a pair, one run may be missing or be that of another process
            there = {each.run for each in done}
            done.sort(key=lambda each: (each.run ^ 1 not in there, each.run))
        guesses = None
        if all(len(each.guesses) and np.isfinite(each.guesses).all() for each in done):
            guesses = np.stack([each.guesses for each in done])
        present = np.stack([each.weights > 0 for each in done])
        most = max(len(each.parts) for each in done)
        parts = np.stack([padded(each.parts, most) for each in done])
        return average(parts, kind, paired, guesses, present)

    def check_weights(self, weights_of: Callable[[int], np.ndarray], runs: int) -> None:
        """Raise if finished runs were trained on other weights than these."""
        for each in self.results(runs):
            if not np.array_equal(each.weights, weights_of(each.run)):
                raise ArgumentError(
                    f"`subset` has other weights for run {each.run} than the store. Hint: give "
                    "another path, or remove the folder."
                )

    def close(self) -> None:
        """Close the store."""
        if self._writer is not None:
            self._claims.__exit__()
            self._reader.close()
            self._writer.close()


def padded(parts: np.ndarray, count: int) -> np.ndarray:
    """Return parts with zeros at the end: short runs have fewer parts."""
    zeros = np.zeros((count - len(parts), *parts.shape[1:]), parts.dtype)
    return np.concatenate([parts, zeros])


def trimmed(parts: np.ndarray) -> np.ndarray:
    """Return parts without the zeros at the end."""
    used = np.flatnonzero(parts.any((1, 2)))
    return parts[: used.max(initial=0) + 1]


def digest(*trees: Any) -> str:
    """Return a fingerprint of arrays and texts."""
    found = hashlib.blake2b(digest_size=16)
    for tree in trees:
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, str):
                found.update(re.sub("0x[0-9a-f]+", "", leaf).encode())
                continue
            array = np.asarray(_plain(leaf))
            found.update(f"{array.dtype}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def contents(jaxpr: Any) -> list[Any]:
    """Return a program as its text and its constants, also those of the programs inside."""
    return [str(jaxpr), *constants(jaxpr)]


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf

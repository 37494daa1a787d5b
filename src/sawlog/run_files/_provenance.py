"""What rows and statistics were computed with: a fingerprint of the weights of the model.

Gradients of two checkpoints are different quantities. Every writer of rows notes the fingerprint of
the weights in the store, statistics and queries carry it, and it is compared before rows are joined
or scored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from sawlog import store
from sawlog.errors import WeightsMismatchError
from sawlog.records import Entries, Records

NOTES = "provenance"
CHANGING = "changing"
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What rows or statistics were computed with.

    Args:
        weights: the fingerprint of all weights of the model, or ``"changing"`` where the model was
            trained meanwhile.
        tensors: the fingerprint of each parameter and buffer, by name.
        projection: the fingerprint of projections that were measured, as those of PCA; empty for
            those that the options determine.
    """

    weights: str
    tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    projection: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the notes of a store."""
        return {
            "weights": self.weights,
            "tensors": dict(self.tensors),
            "projection": self.projection,
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Provenance:
        """What :meth:`to_json` gave."""
        return cls(said["weights"], dict(said["tensors"]), said["projection"])

    @property
    def short(self) -> str:
        """The fingerprint as messages show it."""
        return self.weights[:_SHOWN]


def fingerprint_of(parts: Iterable[tuple[str, str]]) -> str:
    """One fingerprint for named fingerprints, whatever their order."""
    digest = xxhash.xxh3_128()
    for name, own in sorted(parts):
        digest.update(f"{name}\0{own}\0".encode())
    return digest.hexdigest()


def fingerprint_of_arrays(arrays: Mapping[str, np.ndarray | None]) -> str:
    """A fingerprint of named arrays."""
    return fingerprint_of(
        (name, _of_array(array)) for name, array in arrays.items() if array is not None
    )


def _of_array(array: np.ndarray) -> str:
    said = f"{array.dtype.str}{array.shape}"
    return said + xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).view(np.uint8).data)


# -- in a store -----------------------------------------------------------------------------------


def note(writer: store.Writer, provenance: Provenance) -> None:
    """Note in a store what the rows that follow are computed with."""
    value = np.frombuffer(xxhash.xxh3_128_digest(provenance.weights.encode()), np.uint8)
    writer.write(Records({NOTES: Entries(value[None], attrs=provenance.to_json())}))


def noted(reader: store.Reader) -> tuple[Provenance, ...]:
    """What the rows of a store were computed with; nothing for a store without such notes."""
    if NOTES not in reader.names:
        return ()
    found = {}
    for _, attrs in reader.attrs(NOTES):
        own = Provenance.from_json(attrs)
        found[own.weights, own.projection] = own
    return tuple(found.values())


# -- comparing ------------------------------------------------------------------------------------


def check_same_weights(
    ours: Sequence[Provenance], theirs: Sequence[Provenance], what: str, other: str, hint: str
) -> None:
    """Check that two sets of logs come from the same weights; unknown ones are not compared.

    Args:
        ours, theirs: what each was computed with.
        what, other: what they are, as a message says it.
        hint: what to do about it.

    Raises:
        WeightsMismatchError: they do not, or one of them comes from several.
    """
    for several, name in ((ours, what), (theirs, other)):
        kinds = {each.weights for each in several}
        if len(kinds) > 1 or CHANGING in kinds:
            listed = " and ".join(sorted(kind[:_SHOWN] for kind in kinds))
            raise WeightsMismatchError(
                f"{name[0].upper()}{name[1:]} come from several states of the model, with the "
                f"weights {listed}. {hint}"
            )
    if ours and theirs and ours[0].weights != theirs[0].weights:
        raise WeightsMismatchError(
            f"{what[0].upper()}{what[1:]} were computed with the weights {ours[0].short}, and "
            f"{other} with the weights {theirs[0].short}: {_difference(ours[0], theirs[0])}. {hint}"
        )


def _difference(one: Provenance, other: Provenance) -> str:
    """Which tensors differ."""
    ours, theirs = one.tensors, other.tensors
    shared = [name for name in ours if name in theirs]
    changed = [name for name in shared if ours[name] != theirs[name]]
    lacking = [name for name in (*ours, *theirs) if name not in ours or name not in theirs]
    said = []
    if changed:
        said.append(f"{len(changed)} of {len(shared)} tensors differ ({_some(changed)})")
    if lacking:
        said.append(f"{len(lacking)} are in one of the models only ({_some(lacking)})")
    return ", ".join(said) or "their tensors are not known one by one"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")

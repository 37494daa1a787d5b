"""The weights that rows and statistics were computed with, as a fingerprint.

Gradients of two checkpoints are different quantities. Every writer of rows stores the fingerprint
of the weights. Statistics and queries have it too, and it is compared before rows are joined or
scored.
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
from sawlog.store._format import _parse
from sawlog.store._format._store_notes import parsing

NOTES = "provenance"
CHANGING = "changing"
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The weights and projections that rows or statistics were computed with.

    Args:
        weights: the fingerprint of all weights of the model, or ``"changing"`` if the model was
            trained during the capture.
        tensors: the fingerprint of each parameter and buffer, by name.
        projection: the fingerprint of measured projections, such as those of PCA; empty if the
            options determine them.
    """

    weights: str
    tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    projection: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the provenance in types of JSON, for the metadata of a store."""
        return {
            "weights": self.weights,
            "tensors": dict(self.tensors),
            "projection": self.projection,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Provenance:
        """Read what :meth:`to_json` returned.

        Raises:
            KeyError, ValueError: it is something else.
        """
        tensors = _parse.mapping(values["tensors"], "'tensors'")
        return cls(
            _parse.text(values["weights"], "'weights'"),
            {name: _parse.text(each, "a fingerprint") for name, each in tensors.items()},
            _parse.text(values["projection"], "'projection'"),
        )

    @property
    def short(self) -> str:
        """The fingerprint in the short form of messages."""
        return self.weights[:_SHOWN]


def fingerprint_of(parts: Iterable[tuple[str, str]]) -> str:
    """Return one fingerprint of named fingerprints, in any order."""
    digest = xxhash.xxh3_128()
    for name, own in sorted(parts):
        digest.update(f"{name}\0{own}\0".encode())
    return digest.hexdigest()


def fingerprint_of_arrays(arrays: Mapping[str, np.ndarray | None]) -> str:
    """Return a fingerprint of named arrays."""
    return fingerprint_of(
        (name, _of_array(array)) for name, array in arrays.items() if array is not None
    )


def _of_array(array: np.ndarray) -> str:
    head = f"{array.dtype.str}{array.shape}"
    return head + xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).view(np.uint8).data)


# -- in a store -----------------------------------------------------------------------------------


def note(writer: store.Writer, provenance: Provenance) -> None:
    """Write the provenance of the rows that follow to a store."""
    value = np.frombuffer(xxhash.xxh3_128_digest(provenance.weights.encode()), np.uint8)
    writer.write(Records({NOTES: Entries(value[None], attrs=provenance.to_json())}))


def noted(reader: store.Reader) -> tuple[Provenance, ...]:
    """Return the provenance of the rows of a store; empty if it has none."""
    if NOTES not in reader.names:
        return ()
    found = {}
    with parsing(reader.path, "notes of the weights"):
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
        ours, theirs: the provenance of each.
        what, other: how the message names them.
        hint: the hint of the message.

    Raises:
        WeightsMismatchError: the weights differ, or one of the sets has several.
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
    """Describe which tensors differ."""
    ours, theirs = one.tensors, other.tensors
    shared = [name for name in ours if name in theirs]
    changed = [name for name in shared if ours[name] != theirs[name]]
    lacking = [name for name in (*ours, *theirs) if name not in ours or name not in theirs]
    parts = []
    if changed:
        parts.append(f"{len(changed)} of {len(shared)} tensors differ ({_some(changed)})")
    if lacking:
        parts.append(f"{len(lacking)} are in one of the models only ({_some(lacking)})")
    return ", ".join(parts) or "their tensors are not known one by one"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")

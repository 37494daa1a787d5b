"""A fingerprint of the weights of a model that are split over the processes of a job.

It is that of the whole weights, so that it is the same for any number of processes. Computing it
needs all processes. Each process checks its own part for changes since then.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sawlog.run_files._provenance import Provenance, fingerprint_of
from sawlog.torch._model._fingerprint import digest_of, places_of

_LOOKED_AT = 4  # tensors that are hashed for each batch, in rotation


class ShardedFingerprint:
    """The fingerprint of all weights of a model that ``fully_shard`` has split.

    Args:
        model: the model, whose parameters are split now.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors: dict[str, Tensor] = {name: own[key] for name, own, key in places_of(model)}
        self._digests: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        self._versions: dict[str, Any] = {}
        self._turn = 0

    def now(self, projection: str = "") -> Provenance:
        """Hash the weights as they are; all processes call this together if they have changed."""
        if not self._digests or self.changed():
            self._digests = {name: digest_of(each) for name, each in self._tensors.items()}
            self._parts = {name: digest_of(_own(each)) for name, each in self._tensors.items()}
            self._versions = {name: _version(each) for name, each in self._tensors.items()}
        return Provenance(fingerprint_of(self._digests.items()), dict(self._digests), projection)

    def changed(self) -> list[str]:
        """Return the names of tensors whose part in this process changed since :meth:`now`."""
        self._turn += 1
        names = list(self._tensors)
        most = min(_LOOKED_AT, len(names))
        turn = {names[(self._turn * most + each) % len(names)] for each in range(most)}
        found = []
        for name, tensor in self._tensors.items():
            if name in turn or _version(tensor) != self._versions.get(name):
                if digest_of(_own(tensor)) != self._parts.get(name):
                    found.append(name)
                else:
                    self._versions[name] = _version(tensor)
        return found


def _own(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has."""
    own: Tensor = getattr(tensor, "_local_tensor", tensor)
    return own.detach()


def _version(tensor: Tensor) -> tuple[int, int, int]:
    own = getattr(tensor, "_local_tensor", tensor)
    if own.is_inference():
        return (0, 0, own.data_ptr())
    return (tensor._version, own._version, own.data_ptr())

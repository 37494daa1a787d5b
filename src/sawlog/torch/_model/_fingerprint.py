"""A fingerprint of the weights of a model, cheap to check while they do not change.

From batch to batch, a tensor is hashed again only if it may have changed: the object, its memory
address or its version is another, or modules were added or removed. Writes through ``.data`` do
not change the version, so samples of the bytes of some tensors, in rotation, are compared too; a
training step changes all of them. The remaining case, a few elements written through ``.data``, is
found by hashing everything at intervals, in at most 0.1 % of the CPU time.
"""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from sawlog.run_files._provenance import Provenance, fingerprint_of
from sawlog.torch._model._names import named_modules

SMALL, CHUNK = 1024, 256
SHARE = 0.001
TRAINED, OTHERS = 2, 1

_version_of = operator.attrgetter("_version")


@dataclasses.dataclass
class _HashedTensor:
    """A tensor and its state when it was hashed."""

    tensor: Tensor
    version: int
    at: int
    sample: int
    digest: str
    trained: bool
    pieces: list[np.ndarray] | None
    counts: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _HashedTensor:
        pieces = _pieces(tensor)
        return cls(
            tensor,
            _version(tensor),
            _address(tensor),
            _sample(tensor, pieces),
            digest_of(tensor),
            tensor.requires_grad,
            pieces,
            not tensor.is_inference(),
        )

    def is_same(self, tensor: Tensor) -> bool:
        """Return whether a tensor shows no sign of a change."""
        return (
            tensor is self.tensor
            and (not self.counts or tensor._version == self.version)
            and (not self.at or tensor.data_ptr() == self.at)
        )


class _QuickCheck:
    """Checks all tensors for signs of a change, by C-level loops: it runs for every batch.

    Args:
        model: the model.
        known: its tensors as they are now.
    """

    def __init__(self, model: nn.Module, known: Mapping[str, _HashedTensor]) -> None:
        modules = [module for _, module in named_modules(model)]
        self._all = [own for m in modules for own in (m._parameters, m._buffers, m._modules)]
        self._sizes = list(map(len, self._all))
        every = list(known.values())
        ids = {id(each.tensor) for each in every} | {id(each) for each in modules} | {id(None)}
        held = [(own, *item) for own in self._all for item in own.items() if id(item[1]) in ids]
        self._owners, self._keys = [own for own, _, _ in held], [key for _, key, _ in held]
        self._values = [value for _, _, value in held]
        self._counted = [each.tensor for each in every if each.counts]
        self._versions = [each.version for each in every if each.counts]
        self._placed = [each.tensor for each in every if each.at]
        self._at = [each.at for each in every if each.at]

    def is_same(self) -> bool:
        """Return whether no tensor shows a change, and none was added, replaced or removed."""
        return (
            all(map(operator.is_, map(dict.get, self._owners, self._keys), self._values))
            and list(map(len, self._all)) == self._sizes
            and list(map(_version_of, self._counted)) == self._versions
            and list(map(Tensor.data_ptr, self._placed)) == self._at
        )


class Fingerprint:
    """The fingerprint of all weights of a model.

    It includes all parameters, since gradients also depend on those that are not watched, and
    persistent floating-point buffers, such as running means.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: dict[str, _HashedTensor] = {}
        self._quick_check: _QuickCheck | None = None
        self._trained: list[str] = []
        self._others: list[str] = []
        self._hashed_at, self._took = -float("inf"), 0.0
        self._turn = 0

    def now(self, projection: str = "") -> Provenance:
        """Hash every byte of the weights, and return the fingerprint."""
        self._known = {
            name: _HashedTensor.of(own[key]) for name, own, key in places_of(self._model)
        }
        self._quick_check = _QuickCheck(self._model, self._known)
        self._trained = [name for name, known in self._known.items() if known.trained]
        self._others = [name for name, known in self._known.items() if not known.trained]
        digests = {name: known.digest for name, known in self._known.items()}
        return Provenance(fingerprint_of(digests.items()), digests, projection)

    def changed(self) -> list[str]:
        """Return the names of tensors that changed since the last call of :meth:`now`."""
        self._turn += 1
        same = self._quick_check is not None and self._quick_check.is_same()
        found = [] if same else self._compare_tensors()
        for names, most in ((self._trained, TRAINED), (self._others, OTHERS)):
            for turn in range(min(most, len(names))):
                name = names[(self._turn * most + turn) % len(names)]
                known = self._known[name]
                if _sample(known.tensor, known.pieces) != known.sample and name not in found:
                    found.append(name)
        return found or self._compare_bytes()

    def _compare_tensors(self) -> list[str]:
        """Compare tensor by tensor; modules may have been added or removed."""
        there = {name: own[key] for name, own, key in places_of(self._model)}
        gone = [name for name in self._known if name not in there]
        found = [name for name, tensor in there.items() if not self._is_same(name, tensor)]
        if not found and not gone:  # equal values in other memory, or rewritten
            self._quick_check = _QuickCheck(self._model, self._known)
        return found + gone

    def _is_same(self, name: str, tensor: Tensor) -> bool:
        known = self._known.get(name)
        if known is None:
            return False
        if known.is_same(tensor):
            return True
        if digest_of(tensor) != known.digest:
            return False
        self._known[name] = _HashedTensor.of(tensor)
        return True

    def _compare_bytes(self) -> list[str]:
        """Compare every byte, if the interval has passed."""
        start = time.process_time()
        if start - self._hashed_at < self._took / SHARE:
            return []
        there = {name for name, _, _ in places_of(self._model)}
        found = [name for name in there if name not in self._known]
        for name, known in self._known.items():
            if name not in there or digest_of(known.tensor) != known.digest:
                found.append(name)
        self._hashed_at = time.process_time()
        self._took = self._hashed_at - start
        return found


def places_of(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the name of each tensor, the dict that holds it and its key; shared ones once."""
    seen = set()
    for prefix, module in named_modules(model):
        lost = getattr(module, "_non_persistent_buffers_set", ())
        for own in (module._parameters, module._buffers):
            for key, tensor in own.items():
                if tensor is None or id(tensor) in seen:
                    continue
                if own is module._buffers and (key in lost or not _counts(tensor)):
                    continue
                seen.add(id(tensor))
                yield f"{prefix}.{key}" if prefix else key, own, key


def _counts(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def _address(tensor: Tensor | None) -> int:
    """Return the memory address of a tensor; 0 if it has no memory of its own."""
    try:
        return 0 if tensor is None else tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def digest_of(tensor: Tensor) -> str:
    """Return a hash of the values, dtype and shape of a tensor, on any device."""
    head = f"{tensor.dtype}{list(tensor.shape)}"
    return head + "".join(
        xxhash.xxh3_128_hexdigest(_bytes(part).numpy().data) for part in _plain(tensor)
    )


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the plain tensors of a tensor: itself, or the parts of a quantized or sharded one."""
    if tensor.is_meta:
        return
    if hasattr(tensor, "full_tensor"):
        yield from _plain(tensor.full_tensor())
    elif type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) and hasattr(
        tensor, "__tensor_flatten__"
    ):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _plain(getattr(tensor, name))
    else:
        yield tensor.detach()


def _bytes(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8)


def _pieces(tensor: Tensor) -> list[np.ndarray] | None:
    """Return views of some bytes of a tensor; None if it is not in CPU memory."""
    plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout == torch.strided
    if not plain or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    flat: np.ndarray = tensor.detach().view(-1).view(torch.uint8).numpy()
    size = len(flat)
    if size <= SMALL:
        return [flat]
    return [flat[start : start + CHUNK] for start in (0, size // 3, 2 * size // 3, size - CHUNK)]


def _sample(tensor: Tensor, pieces: list[np.ndarray] | None) -> int:
    """Return a hash of some bytes of a tensor: all of a small one, pieces of a large one."""
    if pieces is not None:
        digest = xxhash.xxh3_64()
        for piece in pieces:
            digest.update(piece.data)
        return digest.intdigest()
    plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout == torch.strided
    if not plain or tensor.is_meta:
        return 0
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1]
    return hash(_bytes(flat[:CHUNK]).numpy().tobytes()) if flat.numel() else 0

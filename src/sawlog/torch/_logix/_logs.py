"""Logs as LogIX has them: ids and nested dicts of tensors. They stay logs of sawlog otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from sawlog.errors import ArgumentError
from sawlog.influence import LogLoader, Logs
from sawlog.run_files._blocks import Block

Nested = dict[str, dict[str, torch.Tensor]]
_OTHERS = ("forward/", "backward/")


class LogixLog(Logs):
    """Logs that are unpacked as ``ids, log = run.get_log()``, with ``log["fc"]["grad"]``.

    Gradients are those of weights, as in LogIX; where gradients are projected, they are what is
    stored, with the bias.

    Args:
        logs: the logs.
        flatten: whether ``log`` is one tensor ``[batch, elements]``.
    """

    def __init__(self, logs: Logs, *, flatten: bool = False) -> None:
        super().__init__(logs, names=logs.layers)
        self._flatten = flatten

    def __iter__(self) -> Iterator[Any]:
        return iter((np.asarray(self.ids).tolist(), self._log()))

    def __getitem__(self, place: int) -> Any:
        return tuple(self)[place]

    def _log(self) -> Nested | torch.Tensor:
        rows = self.whole().rows()
        blocks = {each["name"]: Block.from_json(each) for each in self.meta.get("blocks", ())}
        found: Nested = {}
        for layer, values in rows.items():
            module, kind, own = _named(layer, values, blocks)
            found.setdefault(module, {})[kind] = torch.from_numpy(np.ascontiguousarray(own))
        if not self._flatten:
            return found
        parts = [own.flatten(1) for kinds in found.values() for own in kinds.values()]
        return torch.cat(parts, 1)


def _named(
    layer: str, rows: np.ndarray, blocks: Mapping[str, Block]
) -> tuple[str, str, np.ndarray]:
    """Return the module and the kind of a log, and what LogIX has of it."""
    for prefix in _OTHERS:
        if layer.startswith(prefix):
            return layer.removeprefix(prefix), prefix[:-1], rows
    block = blocks.get(layer)
    if block is not None and block.stored == block.shape:
        rows = block.parts(rows)[block.parameters[0]]
    return layer.rpartition(".")[0] or layer, "grad", rows


class LogixLoader(LogLoader):
    """Batches of stored logs, each a :class:`LogixLog`.

    Args:
        logs: the stored logs.
        batch_size: how many examples are in a batch.
        flatten: whether the log of a batch is one tensor.
    """

    def __init__(self, logs: Logs, batch_size: int, flatten: bool = False) -> None:
        super().__init__(logs, batch_size)
        self._flatten = flatten

    def __iter__(self) -> Iterator[Any]:
        meta = {
            **self.logs.meta,
            "provenance": [each.to_json() for each in self.logs.provenance],
        }
        for ids, rows in super().__iter__():
            yield LogixLog(Logs(rows, ids=ids, meta=meta), flatten=self._flatten)


class LogixDataset:
    """Stored logs one by one, as ``id, log = dataset[i]``.

    Args:
        logs: the stored logs.
        flatten: whether the log of an example is one tensor.
    """

    def __init__(self, logs: Logs, flatten: bool = False) -> None:
        self._logs, self._flatten = logs, flatten
        self.ids = list(logs.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        one = self._logs.of(self._logs.gather(self.ids[number : number + 1 or None]))
        (name,), log = LogixLog(one, flatten=self._flatten)
        if isinstance(log, torch.Tensor):
            return name, log[0]
        return name, {module: {k: v[0] for k, v in own.items()} for module, own in log.items()}


class PendingLog:
    """Logs that are complete once the ``with`` in which they were asked for ends."""

    logs: Logs | None = None

    def __deepcopy__(self, memo: Any) -> PendingLog:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(ready(self))

    def __getitem__(self, place: int) -> Any:
        return ready(self)[place]


def ready(log: Any) -> Any:
    """Return logs that were requested inside of their ``with``, once it has ended.

    Raises:
        ArgumentError: it has not ended, or a tuple was made by hand.
    """
    if isinstance(log, PendingLog):
        if log.logs is None:
            raise ArgumentError(
                "The batch of these logs has not ended. Hint: leave the `with` first."
            )
        return log.logs
    if isinstance(log, tuple):
        raise ArgumentError(
            "A tuple of ids and a dict is not known to be logs of this model. Hint: pass what "
            "run.get_log() or an iteration over run.build_log_dataloader() returns."
        )
    return log

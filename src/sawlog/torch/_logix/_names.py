"""Small helpers under LogIX's names."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch.distributed as dist

from sawlog._arrays import to_numpy
from sawlog._validate import one_of
from sawlog.influence import Logs
from sawlog.torch._logix._logs import LogixLog, ready


class DataIDGenerator:
    """Names the examples of a batch, by a hash of their content or by a running number.

    Args:
        mode: ``"hash"`` or ``"index"``.

    >>> DataIDGenerator("index")(np.zeros((2, 3)))
    ['0', '1']
    """

    def __init__(self, mode: str = "hash") -> None:
        self.mode = one_of("mode", mode, ("hash", "index"))
        self.count = 0

    def __call__(self, data: Any) -> list[str]:
        if self.mode == "hash":
            return [_digest(each) for each in data]
        start, self.count = self.count, self.count + len(data)
        return [str(number) for number in range(start, self.count)]


def _digest(value: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(to_numpy(value)).tobytes()).hexdigest()


def merge_logs(log_list: Iterable[Any]) -> LogixLog:
    """Join the logs of several batches of queries."""
    return LogixLog(Logs.join([copy.copy(ready(each)) for each in log_list]))


def get_rank(group: Any = None) -> int:
    """Return the rank of this process; 0 outside of a distributed job."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def get_world_size() -> int:
    """Return the number of processes; 1 outside of a distributed job."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

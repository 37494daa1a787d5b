"""Is this process one of several that were started together, and since when?"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import time

# The number of a process, and how many there are: torchrun, Slurm, Open MPI, MPICH, JAX.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
_APART = 2.0  # seconds: how long after a sibling made something a process may start
_LOADED = time.time()


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """What a process knows about those that were started with it."""

    several: bool
    started: float
    ranked: bool = False

    def is_of_this(self, modified: float) -> bool:
        """Whether something that was made then was made by this process or one beside it."""
        return self.several and modified >= self.started - _APART

    def is_unsure(self, modified: float) -> bool:
        """Whether it may as well have been made by a process that ran before this one."""
        return self.is_of_this(modified) and not self.ranked and modified < self.started


def process_group() -> ProcessGroup:
    """The launch that this process belongs to, by the environment."""
    started = _started(os.getpid())
    for rank, size in _VARIABLES:
        number, count = _number(rank), _number(size)
        if number is not None and count != 1:
            return ProcessGroup(True, started, ranked=True)
    return ProcessGroup(multiprocessing.parent_process() is not None, started)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


@functools.cache
def _started(process: int) -> float:
    """When this process was started, in seconds since 1970."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as file:
            up = float(file.read().split()[0])
        return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _LOADED

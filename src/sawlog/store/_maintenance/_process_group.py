"""Detect whether this process is one of several that were started together."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import time

# The rank of a process, and the number of processes: torchrun, Slurm, Open MPI, MPICH, JAX.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
_APART = 2.0  # seconds that a process may start after a sibling created something
_LOADED = time.time()


@dataclasses.dataclass(frozen=True)
class LaunchedProcesses:
    """What a process knows about the processes that were started with it."""

    several: bool
    started: float
    ranked: bool = False

    def is_of_this(self, modified: float) -> bool:
        """Return whether a file of this time was created by this process or a sibling."""
        return self.several and modified >= self.started - _APART

    def is_unsure(self, modified: float) -> bool:
        """Return whether an earlier process could have created it as well."""
        return self.is_of_this(modified) and not self.ranked and modified < self.started


def process_group() -> LaunchedProcesses:
    """Return the group of this process, from the environment."""
    started = _started(os.getpid())
    for rank, size in _VARIABLES:
        number, count = _number(rank), _number(size)
        if number is not None and count != 1:
            return LaunchedProcesses(True, started, ranked=True)
    return LaunchedProcesses(multiprocessing.parent_process() is not None, started)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


@functools.cache
def _started(process: int) -> float:
    """Return when a process was started, in seconds since 1970."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="ascii") as file:
            up = float(file.read().split()[0])
        return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _LOADED

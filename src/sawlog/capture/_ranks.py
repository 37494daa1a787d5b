"""``Ranks``: the processes of a distributed job that share a run.

One process decides for all of them what happens to an existing run, and all of them wait for each
other when a pass over the data ends: what is read then contains the examples of every process. They
communicate through the key-value store of the job, see :class:`ProcessGroup`.

Waiting ends with an error as soon as a process of the same machine is gone, and after ``timeout``
seconds without a sign of life of a process elsewhere.
"""

from __future__ import annotations

import collections
import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sawlog import errors
from sawlog.errors import ProcessLostError, SawlogError

if TYPE_CHECKING:
    from sawlog.capture._backend import ProcessGroup

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.2  # seconds between two checks of the others
_BEAT = 1.0  # seconds between two signs of life


class Ranks:
    """The processes that share a run, from the view of one of them.

    All processes open the same runs in the same order: the number of times that a process opened
    this path is part of every key.

    Args:
        group: the processes of the job.
        path: the folder of the run.
        timeout: seconds to wait for a process that shows no sign of life.
    """

    _opened: ClassVar[collections.Counter[str]] = collections.Counter()

    def __init__(self, group: ProcessGroup, path: Path, timeout: float) -> None:
        Ranks._opened[str(path)] += 1
        self.group, self._timeout = group, timeout
        self._path = path
        self._name = f"sawlog/{path}/{Ranks._opened[str(path)]}"
        self._meetings = 0
        self._beats, self._beat_at = 0, time.monotonic()
        group.put(self._key("process", group.rank), json.dumps(_identity()))

    @property
    def name(self) -> str:
        """The name of the current pass over the data, the same in all processes."""
        return f"{self._name}/pass/{self._meetings}"

    def _key(self, what: str, *more: object) -> str:
        return "/".join(map(str, (self._name, what, *more)))

    # -- one for all ------------------------------------------------------------------------------

    def decide(self, action: Callable[[], None]) -> None:
        """Let the first process that comes here call ``action``; the others wait for it.

        Raises:
            SawlogError: the action raised it; all processes raise the same error.
            ProcessLostError: the process that decides is gone.
        """
        group, answer = self.group, self._key("decided")
        if not group.claim(self._key("decides")):
            self._hear(answer)
            return
        group.put(self._key("decider"), str(group.rank))
        try:
            action()
        except SawlogError as error:
            group.put(answer, json.dumps([type(error).__name__, str(error)]))
            raise
        group.put(answer, json.dumps(None))

    def _hear(self, answer: str) -> None:
        begun = time.monotonic()
        while (found := self.group.get(self._key("decider"))) is None:
            if time.monotonic() - begun > self._timeout:
                raise self._late(range(self.group.size), "sawlog.init(...)")
            time.sleep(_FIRST_PAUSE)
        self._wait({int(found): answer}, "sawlog.init(...)")
        said = json.loads(self.group.get(answer) or "null")
        if said is not None:
            kind, text = said
            raise getattr(errors, kind, SawlogError)(text)

    # -- all together -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Announce that this process logs examples in the current pass, in a loop of the user.

        Passes of ``run.extract`` are not announced: every process reaches their end in any case,
        and one that is late must not mistake the pass of another process for one that it missed.
        """
        self.group.put(self._key("begun", self._meetings), "")

    def has_begun(self) -> bool:
        """Return whether any process logs examples of a loop in the current pass."""
        return self.group.get(self._key("begun", self._meetings)) is not None

    def beat(self) -> None:
        """Give a sign of life, at most once a second."""
        if time.monotonic() - self._beat_at > _BEAT:
            self._beats += 1
            self._beat_at = time.monotonic()
            self.group.put(self._key("beat", self.group.rank), str(self._beats))

    def meet(self, doing: str) -> None:
        """Wait until all processes have finished the current pass.

        Raises:
            ProcessLostError: a process is gone, or did not arrive here in time.
        """
        group, number = self.group, self._meetings
        self._meetings += 1
        group.put(self._key("finished", number, group.rank), "")
        others = [rank for rank in range(group.size) if rank != group.rank]
        self._wait({rank: self._key("finished", number, rank) for rank in others}, doing)

    def _wait(self, keys: dict[int, str], doing: str) -> None:
        """Wait until each of these processes has set its key."""
        pause, missing = _FIRST_PAUSE, dict(keys)
        signs: dict[int, str | None] = {}
        since = dict.fromkeys(missing, time.monotonic())
        while True:
            gone = [rank for rank in missing if self._is_gone(rank)]
            missing = {rank: key for rank, key in missing.items() if self.group.get(key) is None}
            if not missing:
                return
            if lost := [rank for rank in gone if rank in missing]:
                raise self._lost(lost, doing)
            for rank in missing:
                sign = self.group.get(self._key("beat", rank))
                if sign != signs.get(rank):
                    signs[rank], since[rank] = sign, time.monotonic()
            if late := [r for r in missing if time.monotonic() - since[r] > self._timeout]:
                raise self._late(late, doing)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_gone(self, rank: int) -> bool:
        said = self.group.get(self._key("process", rank))
        return said is not None and is_gone(json.loads(said))

    def _lost(self, ranks: Iterable[int], doing: str) -> ProcessLostError:
        return ProcessLostError(
            f"{_named(ranks)} of this job ended before {doing} of the run {self._path}, so its "
            "examples are not complete. Everything that was flushed is on disk. Hint: start the "
            "job again, with any number of processes: it continues with the examples that are "
            "missing."
        )

    def _late(self, ranks: Iterable[int], doing: str) -> ProcessLostError:
        return ProcessLostError(
            f"{_named(ranks)} of this job did not reach {doing} of the run {self._path}, and gave "
            f"no sign of life for {self._timeout:g} seconds. Everything that was flushed is on "
            "disk. Hint: every process must call it, also one without examples; "
            "sawlog.init(..., distributed=False) opens a run for one process alone; "
            "sawlog.init(..., timeout=seconds) waits longer."
        )


def _named(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    return f"Rank {listed[0]}" if len(listed) == 1 else f"Ranks {', '.join(map(str, listed))}"


# -- whether a process is there -------------------------------------------------------------------


def _identity() -> dict[str, str | int]:
    """Return what tells this process from all others, on this machine or elsewhere."""
    return {"machine": _machine(), "process": os.getpid(), "started": _started(os.getpid()) or ""}


def is_gone(identity: dict[str, str | int]) -> bool:
    """Return whether a process ended; False for one of another machine, which cannot be known."""
    if identity["machine"] != _machine() or not identity["started"]:
        return False
    return _started(int(identity["process"])) != identity["started"]


def _machine() -> str:
    """Return a name for the set of processes that this one can see."""
    try:
        return f"{platform.node()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""  # not Linux: processes are never known to be gone


def _started(process: int) -> str | None:
    """Return when a process was started; None if it ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]

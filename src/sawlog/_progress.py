"""The progress of a pass over data: examples a second, bytes written, time left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from sawlog._rich import BarColumn, Console, Progress, TaskID, TextColumn, TimeElapsedColumn
from sawlog._rich import TimeRemainingColumn as TimeLeft


class Bar:
    """A progress bar; it counts also if it is hidden."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress, self._task = progress, task
        self._begun = time.monotonic()
        self.examples = 0

    def advance(self, count: int = 1) -> None:
        """Count ``count`` more, without a rate."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=count)

    def step(self, examples: int, nbytes: int) -> None:
        """Count one more batch, with ``examples`` new ones; ``nbytes`` is the total written."""
        self.examples += examples
        if self._progress is not None and self._task is not None:
            rate = self.examples / max(1e-9, time.monotonic() - self._begun)
            said = f"{rate:,.0f} examples/s, {nbytes / 1e6:,.1f} MB"
            self._progress.update(self._task, advance=1, said=said)


@contextlib.contextmanager
def shown(
    what: str, total: int | None, *, quiet: bool = False, unit: str = "batches"
) -> Iterator[Bar]:
    """Show progress inside the ``with``, if the output is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield Bar(None, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed}}/{{task.total}} {unit}"),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TimeLeft(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, progress.add_task(what, total=total, said=""))

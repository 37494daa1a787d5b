"""``LogIXScheduler``: one iteration for each pass over the data that a method needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sawlog._validate import one_of
from sawlog.errors import ArgumentError
from sawlog.torch._logix._run import HESSIANS, LogIX
from sawlog.torch._run import Run


class LogIXScheduler:
    """Sets a run up for one pass over the data after the other.

    Args:
        logix: the run.
        lora: ``"none"``, ``"random"`` or ``"pca"``, which needs a pass of its own.
        hessian: ``"none"``, ``"raw"``, ``"kfac"`` or ``"ekfac"``, which needs two passes.
        save: ``"none"``, or what to store of each example: ``"grad"``, ``"forward"``,
            ``"backward"``.

    >>> import tempfile
    >>> run = LogIX("example", {"root_dir": tempfile.mkdtemp()})
    >>> len(LogIXScheduler(run, lora="pca", hessian="ekfac", save="grad"))
    3
    """

    def __init__(
        self, logix: Run, lora: str = "none", hessian: str = "none", save: str = "none"
    ) -> None:
        if not isinstance(logix, LogIX):
            raise ArgumentError(
                "LogIXScheduler needs a run of LogIX. Hint: `import sawlog.logix as logix` in "
                "place of `import logix`, or sawlog.LogIX(project, config=...); without LogIX, "
                "run.extract(step, loader) makes all passes in one call."
            )
        one_of("lora", lora, ("none", "random", "pca"))
        one_of("hessian", hessian, HESSIANS)
        one_of("save", save, ("none", "forward", "backward", "grad"))
        self._run, self._lora, self._hessian = logix, lora, hessian
        factors = {"log": ["grad"], "save": [], "statistic": ["kfac"]}
        self._passes: list[dict[str, Any]] = []
        if lora == "pca":
            self._passes.append({**factors, "compress": None})
        if hessian == "ekfac":
            self._passes.append(dict(factors))
        self._passes.append(last_pass(hessian, save))
        self._next = 0

    def __len__(self) -> int:
        return len(self._passes)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        run, number = self._run, self._next
        if number == len(self._passes):
            raise StopIteration
        run.finalize()
        if self._lora != "none" and number == (1 if self._lora == "pca" else 0):
            run.add_lora(init=self._lora)
        run.save(True)
        run.setup(self._passes[number])
        run._note_hessian(self._hessian)
        self._next += 1
        return number


def last_pass(hessian: str, save: str) -> dict[str, Any]:
    """Return the options of the last pass."""
    saved = [] if save == "none" else [save]
    if hessian == "raw" and save == "none":
        return {"log": ["grad"], "save": [], "statistic": ["covariance"]}
    statistic = [hessian] if hessian in ("kfac", "ekfac") else []
    if not saved and not statistic:
        raise ArgumentError("Nothing would be kept. Hint: save='grad', or another hessian.")
    log = sorted({*saved, "grad"} if statistic or not saved else {*saved})
    return {"log": log, "save": saved, "statistic": statistic}

"""``run.extract``: all passes over the data that the options need, in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sawlog._validate import refuse
from sawlog.capture._backend import CutOne, Step
from sawlog.capture._batches import DataId
from sawlog.capture._check import Check
from sawlog.capture._label_sampling import samples_labels
from sawlog.errors import ArgumentError, CaptureError
from sawlog.influence import Logs
from sawlog.run_files._options import Options

if TYPE_CHECKING:
    from sawlog.capture._run import CaptureRun

Mask = Callable[[Any], Any] | str | int | None
_CHECKED_EXAMPLES = 3


@dataclasses.dataclass(frozen=True)
class Extraction:
    """What :meth:`sawlog.torch.Run.extract` did.

    Args:
        examples: the number of examples that each pass logged or measured now.
        passes: what each pass was for.
        check: the check of the first batch; None if it was not checked.
    """

    examples: tuple[int, ...]
    passes: tuple[str, ...]
    check: Check | None


@dataclasses.dataclass(frozen=True)
class ExtractionJob:
    """The arguments of ``run.extract``, and one pass after the other.

    Args:
        run: the run.
        step: ``step(model, batch)`` returns a loss.
        loader: the batches.
        data_id: how examples are named.
        mask: which positions count.
        one: how to cut one example out of a batch.
        quiet: whether to hide progress bars.
    """

    run: CaptureRun
    step: Step
    loader: Iterable[Any]
    data_id: DataId
    mask: Mask
    one: CutOne
    quiet: bool

    def run_all(self, check: bool) -> Extraction:
        """Run all passes; ``check`` compares the first batch with its examples alone."""
        if not callable(self.step):
            refuse("step", "a function step(model, batch) that returns the loss", self.step)
        if not isinstance(self.loader, Iterable) and not hasattr(self.loader, "__getitem__"):
            refuse("loader", "an iterable of batches", self.loader, "a DataLoader, or [batch].")
        run, wanted = self.run, self.run.options
        passes = [("queries", wanted)] if run.evaluates else passes_of(wanted)
        if len(passes) > 1 and isinstance(self.loader, Iterator):
            raise ArgumentError(
                f"{len(passes)} passes over the data are needed "
                f"({', '.join(n for n, _ in passes)}), and a generator can be read only once. "
                "Hint: pass a DataLoader or a list."
            )
        counts, checked = [], None
        for name, options in passes:
            with run._with_options(options):
                count, found = self._run_pass(name, check and checked is None)
            counts.append(count)
            checked = checked or found
        return Extraction(tuple(counts), tuple(name for name, _ in passes), checked)

    def _run_pass(self, name: str, check: bool) -> tuple[int, Check | None]:
        with self.run._watched_model().gathered(for_pass=True):
            return self._run_batches(name, check)

    def _run_batches(self, name: str, check: bool) -> tuple[int, Check | None]:
        run, count, checked, queries = self.run, 0, None, []
        backend = run._watched_model()
        title = f"{run.project}: {name}"
        for ids, batch in run._batches(self.loader, self.data_id, title, self.quiet):
            mask = self._mask_of(batch)
            if check and checked is None and {"grad", "backward"} & {*run.options.log}:
                checked = backend.check(
                    run,
                    self.step,
                    batch,
                    mask=mask,
                    examples=_CHECKED_EXAMPLES,
                    one=self.one,
                    tolerance=None,
                )
                if not checked.ok:
                    raise CaptureError(checked.message())
            with run(data_id=ids, mask=mask):
                if run._batch is not None:
                    backend.run_step(run._batch, self.step, batch, len(ids))
                    count += len(ids)
            if run.evaluates:
                queries.append(run.get_log())
        if queries:
            run._log = Logs.join(queries)
        return count, checked

    def _mask_of(self, batch: Any) -> Any:
        if self.mask is None:
            return None
        return self.mask(batch) if callable(self.mask) else batch[self.mask]


def passes_of(options: Options) -> list[tuple[str, Options]]:
    """Return the passes over the data that options need, each with its purpose."""
    passes = []
    corrects, apart = "ekfac" in options.statistic, samples_labels(options) and bool(options.saved)
    factors = dataclasses.replace(options, log=("grad",), save=(), statistic=("kfac",))
    if options.compress is not None and options.compress.kind == "pca":
        passes.append(("covariances", dataclasses.replace(factors, compress=None)))
    if corrects or apart:
        passes.append(("K-FAC", factors))
    if apart:  # rows have the labels of the data, statistics those that are drawn
        if corrects:
            passes.append(("EK-FAC", dataclasses.replace(factors, statistic=("ekfac",))))
        return [*passes, ("rows", options.without_statistic())]
    last = "EK-FAC" if corrects else "rows" if options.saved else "statistics"
    if last == "EK-FAC" and options.saved:
        last = "EK-FAC and rows"
    return [*passes, (last, options)]

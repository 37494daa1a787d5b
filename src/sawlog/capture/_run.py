"""``CaptureRun``: one model watched over a set of examples, its logs in a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sawlog import _progress
from sawlog._rich import Console
from sawlog.capture._backend import CutOne, Step
from sawlog.capture._batches import DataId, named_batches
from sawlog.capture._check import Check
from sawlog.capture._data_ids import data_ids
from sawlog.capture._extract import Extraction, ExtractionJob, Mask
from sawlog.capture._run_core import RunCore
from sawlog.errors import CaptureError
from sawlog.example_data import check_described, describe
from sawlog.example_data._table import QUERIES
from sawlog.run_files._options import Options


class CaptureRun(RunCore):
    """A run without a framework: options, ids, passes, queries and files.

    A framework's run, such as :class:`sawlog.torch.Run`, adds ``watch``, which creates a
    :class:`Backend` and passes it to :meth:`_watch`.

    Args:
        project: the name of the run, a folder in ``root``.
        root: the folder of all runs.
        exists: what to do if the run exists: ``"append"`` continues it and skips the examples that
            it has; ``"replace"`` deletes it; ``"error"`` raises.
        config: initial options, as for :meth:`setup`; None takes those that an existing run was
            last set up with.
        sinks: where :meth:`log` writes; by default a store in the folder ``metrics`` of the run.
        distributed: whether the processes of a distributed job share the run; False is for a run
            that only one of them has.
        timeout: seconds to wait for a process of the job that shows no sign of life.
    """

    def describe(
        self,
        dataset: Any,
        ids: Any = None,
        *,
        text: str | None = None,
        image: str | None = None,
        queries: bool = False,
    ) -> int:
        """Store what the examples of the run look like, so that pages and tables can show them.

        Examples that were described before are replaced.

        Args:
            dataset: a Hugging Face dataset, a data frame of pandas or polars, an Arrow table, a
                dict from ids to examples, a list or torch dataset, the path of a file (``.jsonl``,
                ``.csv``, ``.tsv``, ``.parquet``, ``.txt``), or the path of a folder of images. An
                example is a text, an image, a dict of columns, or a pair ``(example, label)``.
            ids: the ids that the run logs: a list, the name of a column, a function of an example,
                or ``"position"``. None takes the keys of a dict, the column ``id``, the index of
                a data frame, or else positions from 0.
            text, image: the columns with the text and the image; None finds them.
            queries: whether these are the queries of the scores that are saved in the run, and not
                its own examples.

        Returns:
            How many examples were described.

        Raises:
            ArgumentError: the data set is of an unknown kind, an id occurs twice, or none of the
                ids is stored in the run.

        >>> import tempfile, sawlog
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> run.describe([{"text": "a cat", "label": 1}, {"text": "a dog", "label": 0}])
        2
        """
        if queries:
            return describe(self.path / QUERIES, dataset, ids, text=text, image=image)
        described = describe(self.path, dataset, ids, text=text, image=image)
        check_described(self.path)
        return described

    def missing(self, data_id: Any) -> np.ndarray:
        """Return the ids that are not logged yet, in order."""
        ids = data_ids(data_id)
        return ids[self._current_pass().seen.missing(ids)]

    def batches(
        self,
        loader: Iterable[Any],
        data_id: DataId = None,
        *,
        total: int | None = None,
        quiet: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """Iterate over the batches of a loader that are not logged yet, with a progress bar.

        Args:
            loader: an iterable of batches.
            data_id: a function from a batch to its ids, or the key of the ids in a batch, such as
                ``"id"``. None numbers the examples: by their positions in the dataset of a
                ``DataLoader``, also where it shuffles; from 0 on, in their order, for any other
                iterable, whose order must then always be the same.
            total: the number of batches, if the loader has no length.
            quiet: whether to hide the progress bar.

        Yields:
            ``(ids, batch)``, for ``with run(data_id=ids): ...``
        """
        yield from self._batches(loader, data_id, f"logging {self.project}", quiet, total)

    def _batches(
        self,
        loader: Iterable[Any],
        data_id: DataId,
        title: str,
        quiet: bool,
        total: int | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        current = None if self.evaluates else self._current_pass()
        if total is None:
            with contextlib.suppress(TypeError):  # streams have no length
                total = len(loader)  # type: ignore[arg-type]
        with _progress.shown(title, total, quiet=quiet) as bar:
            for ids, batch in named_batches(self._watched_model(), loader, data_id):
                new = current is None or bool(current.seen.missing(ids).any())
                if new:
                    yield ids, batch
                bar.step(len(ids) if new else 0, 0 if current is None else current.nbytes)

    def extract(
        self,
        step: Step,
        loader: Iterable[Any],
        data_id: DataId = None,
        *,
        mask: Mask = None,
        check: bool = True,
        one: CutOne = None,
        quiet: bool = False,
    ) -> Extraction:
        """Log every example of a loader, in as many passes as the options need.

        PCA projections need a pass for covariances, EK-FAC a pass for K-FAC before its own.
        Examples that are logged already are skipped. The first batch is checked as :meth:`check`
        does; if its examples alone give other gradients, nothing is logged. After :meth:`eval` the
        examples are queries, and :meth:`get_log` returns all of them.

        Args:
            step: ``step(model, batch)`` returns the loss of the batch, or the losses of its
                examples, ``[batch]``.
            loader: an iterable of batches, read once for each pass.
            data_id: as for :meth:`batches`.
            mask: which positions count, as for ``run(data_id, mask=...)``: a function of the
                batch, or the key of the mask in it.
            check: whether to check the first batch.
            one: how the check cuts an example out of a batch, ``one(batch, i)``; None handles
                tensors, lists, dicts and dataclasses.
            quiet: whether to hide progress bars.

        Raises:
            CaptureError: the check found differences, or examples cannot be separated.
            ArgumentError: a step returned no loss, or a loader cannot be read again.

        >>> import tempfile, torch, sawlog
        >>> model = torch.nn.Linear(3, 2)
        >>> loader = torch.utils.data.DataLoader(torch.randn(10, 3), 4, shuffle=True)
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> run.setup(statistic="ekfac", compress={"kind": "pca", "rank": 2})
        >>> report = run.watch(model, quiet=True)
        >>> run.extract(lambda model, x: (model(x) ** 2).mean(), loader).passes
        ('covariances', 'K-FAC', 'EK-FAC and rows')
        """
        return ExtractionJob(self, step, loader, data_id, mask, one, quiet).run_all(check)

    @contextlib.contextmanager
    def _with_options(self, options: Options) -> Iterator[None]:
        """Run one pass of an extraction with options of its own; queries keep those of the run.

        The next pass uses what all processes of a job measured, so they wait for each other.
        """
        if self.evaluates:
            yield
            return
        self._end_pass()
        wanted = self._options
        self._options, self._remembered_options = options, wanted
        try:
            yield
            self._end_pass(together=True)
        finally:
            if self._pass is not None:
                self._pass.close()
                self._pass = None
            self._options, self._remembered_options = wanted, None

    def check(
        self,
        step: Step,
        batch: Any,
        *,
        examples: int = 4,
        mask: Any = None,
        one: CutOne = None,
        tolerance: float | None = None,
        raises: bool = False,
        quiet: bool = False,
    ) -> Check:
        """Run some examples of a batch alone, and compare gradients and losses with the batch.

        The logged gradients of each layer are compared with plain autograd on a batch of one. The
        model, its gradients and the random state stay as they are.

        Args:
            step: as for :meth:`extract`.
            batch: a batch: a tensor, list, dict, dataclass, or any nesting of them.
            examples: how many of its examples to run alone.
            mask: as for ``run(data_id, mask=...)``.
            one: how to cut an example out of the batch, ``one(batch, i)``.
            tolerance: the relative error up to which gradients count as equal; by default that of
                rounding in the dtype of the model.
            raises: whether differences are an error.
            quiet: whether to hide the table.

        Raises:
            CaptureError: there are differences, and ``raises`` is true.
            ArgumentError: the batch cannot be cut into examples.

        >>> import tempfile, torch, sawlog
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
        >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
        >>> report = run.watch(model, quiet=True)
        >>> run.check(lambda model, x: (model(x) ** 2).mean(), torch.randn(5, 3), quiet=True).ok
        True
        """
        found = self._watched_model().check(
            self, step, batch, mask=mask, examples=examples, one=one, tolerance=tolerance
        )
        if not quiet:
            Console(stderr=True).print(found)
        if raises and not found.ok:
            raise CaptureError(found.message())
        return found

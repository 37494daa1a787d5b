"""``patch_trainer``: a Trainer class that logs its dataset and scores it."""

from __future__ import annotations

import inspect
from typing import Any

from sawlog.capture._extract import Extraction
from sawlog.errors import ArgumentError
from sawlog.huggingface._arguments import LogArguments
from sawlog.huggingface._extract import TrainerLogs
from sawlog.influence import Ranking, Scores
from sawlog.logix import LogIXArguments
from sawlog.torch import Run


def patch_trainer(trainer_class: type[Any]) -> type[Any]:
    """Return a subclass of a Trainer class that logs per-example gradients.

    The new class takes all arguments of the other, and ``log_args=LogArguments(...)``. It trains
    as before. ``extract_log()`` logs the training dataset with the weights as they are,
    ``influence(dataset)`` scores it for the examples of another dataset, and ``self_influence()``
    for themselves.

    Args:
        trainer_class: ``transformers.Trainer`` or any subclass, such as those of TRL.

    >>> import transformers
    >>> patch_trainer(transformers.Trainer).__name__
    'LogTrainer'
    """

    class LogTrainer(trainer_class):
        """A Trainer that logs per-example gradients; see :func:`patch_trainer`."""

        def __init__(
            self,
            *args: Any,
            log_args: LogArguments | LogIXArguments | None = None,
            logix_args: LogIXArguments | LogArguments | None = None,
            **options: Any,
        ) -> None:
            if args and isinstance(args[0], (LogArguments, LogIXArguments)):
                log_args, args = args[0], args[1:]
            given = log_args if log_args is not None else logix_args
            if not isinstance(given, (LogArguments, LogIXArguments)):
                raise ArgumentError(
                    f"{type(self).__name__} needs log_args=LogArguments(...); got "
                    f"{type(given).__name__}."
                )
            if "tokenizer" in options and not _takes(trainer_class, "tokenizer"):
                options.setdefault("processing_class", options.pop("tokenizer"))
            super().__init__(*args, **options)
            self.log_args = self.logix_args = given
            self._sawlog = TrainerLogs(self, given)

        @property
        def log_run(self) -> Run:
            """The run that examples are logged to."""
            return self._sawlog.run

        @property
        def logix(self) -> Run:
            """The run, under LogIX's name."""
            return self._sawlog.run

        def extract_log(self, dataset: Any = None) -> Extraction:
            """Log the gradient of every example, with the weights as they are.

            Each row is the gradient of the loss of a batch of one example, in eval mode. Examples
            that an earlier program logged are skipped.

            Args:
                dataset: the examples; the training dataset by default.
            """
            return self._sawlog.extract(dataset)

        def influence(self, dataset: Any = None, **options: Any) -> Scores:
            """Score all logged examples for queries.

            Args:
                dataset: the queries, or the name of one of several evaluation datasets; by default
                    the evaluation dataset, with ``LogIXArguments`` the training dataset.
                options: those of :func:`sawlog.influence.attribute`, such as ``curvature`` and
                    ``top_k``.
            """
            return self._sawlog.influence(_queries(self, dataset), options)

        def self_influence(self, dataset: Any = None, **options: Any) -> Ranking:
            """Score examples for themselves: the logged ones, or those of a dataset."""
            if dataset is None and isinstance(self.log_args, LogIXArguments):
                dataset = self.train_dataset
            return self._sawlog.self_influence(dataset, options)

    LogTrainer.__name__ = LogTrainer.__qualname__ = f"Log{trainer_class.__name__}"
    LogTrainer.__module__ = trainer_class.__module__
    return LogTrainer


def _takes(kind: type[Any], name: str) -> bool:
    return name in inspect.signature(kind.__init__).parameters


def _queries(trainer: Any, dataset: Any) -> Any:
    """Return the dataset of the queries."""
    several = trainer.eval_dataset
    if isinstance(dataset, str):
        if not isinstance(several, dict) or dataset not in several:
            raise ArgumentError(f"The Trainer has no evaluation dataset {dataset!r}.")
        return several[dataset]
    if dataset is not None:
        return dataset
    if isinstance(trainer.log_args, LogIXArguments):
        return trainer.train_dataset
    if isinstance(several, dict):
        raise ArgumentError(
            "The Trainer has several evaluation datasets. Hint: "
            f"trainer.influence({next(iter(several))!r})."
        )
    if several is None:
        raise ArgumentError(
            "There are no queries: the Trainer has no eval_dataset. Hint: "
            "trainer.influence(dataset)."
        )
    return several

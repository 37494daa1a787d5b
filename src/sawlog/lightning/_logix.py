"""``patch``: LogIX's way to log with a module and a trainer of Lightning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sawlog.lightning._extract import FirstBatches, extract
from sawlog.logix import DataIDGenerator, LogIX, LogIXArguments


def patch(
    module_cls: type[Any],
    trainer_cls: type[Any],
    logix_args: LogIXArguments,
    data_id_extractor: Callable[[Any], Any] | None = None,
    mask_extractor: Callable[[Any], Any] | None = None,
) -> tuple[type[Any], type[Any]]:
    """Return a module class that is watched, and a trainer class that logs it.

    The trainer has ``extract_log(module, loader)``, ``influence(module, loader)`` and
    ``self_influence(module, loader)``, which do not train.

    Args:
        module_cls: the class of the module, with its model in the attribute ``model_key``.
        trainer_cls: ``lightning.Trainer``.
        logix_args: what to log.
        data_id_extractor: a function from a batch to the ids of its examples; by default a hash of
            the content of the first tensor.
        mask_extractor: a function from a batch to the mask of its positions that count.
    """
    run = logix_args.open()
    names = data_id_extractor or _hashes()

    class PatchedModule(module_cls):
        """The module, watched by the run."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            logix_args.watch(run, getattr(self, logix_args.model_key))

        @property
        def logix(self) -> LogIX:
            """The run."""
            return run

    class PatchedTrainer(trainer_cls):
        """The trainer, which logs instead of fitting."""

        def __init__(self, *args: Any, **options: Any) -> None:
            options = {"logger": False, "enable_checkpointing": False, **options}
            super().__init__(*args, **options)
            self.logix, self.logix_args = run, logix_args

        def extract_log(self, module: Any, train_dataloaders: Any = None, **of: Any) -> Any:
            """Log every example of a loader."""
            run.save(True)
            logix_args.prepare(run)
            return self._pass(module, train_dataloaders)

        def influence(self, module: Any, train_dataloaders: Any = None, **of: Any) -> Any:
            """Score all logged examples for the examples of a loader."""
            queries = self._queries(module, train_dataloaders)
            return run.influence.compute_influence_all(queries, **logix_args.analysis())

        def self_influence(self, module: Any, train_dataloaders: Any = None, **of: Any) -> Any:
            """Score the examples of a loader for themselves."""
            queries = self._queries(module, train_dataloaders)
            return run.influence.compute_self_influence(queries, **logix_args.analysis())

        def _queries(self, module: Any, loader: Any) -> Any:
            run.eval()
            try:
                self._pass(module, FirstBatches(loader, self.max_steps))
                return run.get_log()
            finally:
                run.save(True)

        def _pass(self, module: Any, loader: Any) -> Any:
            module.to(self.strategy.root_device)
            check = not run.evaluates
            return extract(run, module, loader, names, mask=mask_extractor, check=check)

    for kind, base in ((PatchedModule, module_cls), (PatchedTrainer, trainer_cls)):
        kind.__name__ = kind.__qualname__ = f"LogIX{base.__name__}"
    return PatchedModule, PatchedTrainer


def _hashes() -> Callable[[Any], Any]:
    generator = DataIDGenerator()

    def names(batch: Any) -> list[str]:
        return generator(batch[0] if isinstance(batch, (list, tuple)) else batch)

    return names

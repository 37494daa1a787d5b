"""``LogArguments``: what a patched Trainer logs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from sawlog.errors import ArgumentError
from sawlog.run_files._options import Options, read
from sawlog.torch import Run

RANK = 64


@dataclasses.dataclass
class LogArguments:
    """What a patched Trainer logs: the options of a run, and shorthands for the usual ones.

    Args:
        project: the name of the run, a folder in ``root``.
        config: options as :meth:`sawlog.torch.Run.setup` takes them: a dict or a YAML file.
        lora: whether gradients are projected to ``rank`` dimensions on both sides of each layer,
            unless ``config`` says how.
        ekfac: whether the passes for EK-FAC are run.
        rank: the rank of the projection.
        root: the folder of all runs.
        exists: what to do about an existing run: ``"append"``, ``"replace"`` or ``"error"``.
        data_id: None names examples by their row numbers in the dataset, a string by a column of
            it, ``"hash"`` by a hash of their rows; a function gets a batch.
        names: patterns of the names of modules or parameters to watch; all by default.
        types: types of modules to watch.
        uncovered: what to do about parameters that no layer rule covers, as in ``run.watch``.
        check: whether the first batch is compared with its examples run alone.
        sinks: where ``run.log`` writes.

    >>> LogArguments("gpt", {"dtype": "bfloat16"}, lora=True, ekfac=True).options().statistic
    ('ekfac',)
    """

    project: str = "sawlog"
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None
    lora: bool = False
    ekfac: bool = False
    rank: int = RANK
    root: str | os.PathLike[str] = "sawlog"
    exists: str = "append"
    data_id: str | Callable[[Any], Any] | None = None
    names: str | Sequence[str] | Callable[[str], bool] | None = None
    types: Sequence[type[nn.Module]] | None = None
    uncovered: str = "func"
    check: bool = True
    sinks: Sequence[Any] | None = None

    def options(self) -> Options:
        """Return the options of the run.

        Raises:
            ArgumentError: they contradict each other.
        """
        options = read(self.config)
        if self.ekfac and "kfac" in options.statistic:
            raise ArgumentError(
                'ekfac=True, and config has statistic="kfac". Hint: leave it out of config: EK-FAC '
                "runs the pass for K-FAC first."
            )
        if self.ekfac:
            options = read(options, statistic=[*options.statistic, "ekfac"])
        if self.lora and options.compress is None:
            options = read(options, compress=self.rank)
        return options

    def open(self) -> Run:
        """Return the run."""
        return Run(
            self.project,
            root=self.root,
            exists=self.exists,
            config=self.options().to_json(),
            sinks=self.sinks,
        )

    def watch(self, run: Run, model: nn.Module) -> None:
        """Watch the model of a Trainer."""
        run.watch(model, self.names, self.types, uncovered=self.uncovered, quiet=True)

    def analysis(self) -> dict[str, Any]:
        """Return the options of scores that the arguments imply."""
        return {}

"""``LogIXArguments``: the arguments of LogIX's patched Trainers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn

from sawlog._validate import one_of
from sawlog.errors import ArgumentError
from sawlog.torch._logix._run import HESSIANS, LogIX
from sawlog.torch._logix._scheduler import LogIXScheduler, last_pass


@dataclasses.dataclass
class LogIXArguments:
    """The arguments of LogIX's patched Trainers, under LogIX's names.

    Args:
        project: the name of the run.
        config: the path of LogIX's YAML file.
        lora: whether gradients are projected, as the file says.
        hessian: ``"none"``, ``"raw"``, ``"kfac"`` or ``"ekfac"``.
        save: ``"none"`` or ``"grad"``.
        initialize_from_log: whether the options of the existing run are read.
        name_filter: parts of the names of layers.
        type_filter: types of layers; by default Linear, Conv1d and Conv2d.
        log_batch_size: accepted and not needed.
        log_num_workers: accepted and not needed.
        input_key: the key of the inputs, of which ids are made.
        influence_damping: the damping of scores.
        influence_mode: ``"dot"``, ``"cosine"`` or ``"l2"``.
        influence_groups: parts of the names of layers whose scores are summed.
        label_key: accepted and not needed: labels are found in the loss.
        attention_key: the key of the mask of positions that count in statistics.
        data_id: ``"detokenize"``, ``"hash"`` or ``"index"``, the row number.
        ignore_idx: accepted and not needed.
        model_key: the attribute of a ``LightningModule`` that is watched.
    """

    project: str = "tmp_logix"
    config: Mapping[str, Any] | str | None = "config.yaml"
    lora: bool = False
    hessian: str = "none"
    save: str = "none"
    initialize_from_log: bool = False
    name_filter: list[str] = dataclasses.field(default_factory=list)
    type_filter: list[type[nn.Module]] = dataclasses.field(default_factory=list)
    log_batch_size: int = 16
    log_num_workers: int = 1
    input_key: str = "input_ids"
    influence_damping: float | None = None
    influence_mode: str = "dot"
    influence_groups: list[str] | None = None
    label_key: str = "labels"
    attention_key: str = "attention_mask"
    data_id: str = "detokenize"
    ignore_idx: int = -100
    model_key: str = "model"

    def __post_init__(self) -> None:
        one_of("hessian", self.hessian, HESSIANS)
        one_of("data_id", self.data_id, ("detokenize", "hash", "index"))
        self.mode = "log"

    def open(self) -> LogIX:
        """Return the run."""
        return LogIX(self.project, self.config)

    def watch(self, run: LogIX, model: nn.Module) -> None:
        """Watch a model, and compress gradients if the arguments say so."""
        run.watch(model, type_filter=self.type_filter, name_filter=self.name_filter)
        if self.initialize_from_log:
            run.initialize_from_log()
        elif self.lora:
            run.add_lora()

    def prepare(self, run: LogIX) -> None:
        """Set a run up for :meth:`sawlog.torch.Run.extract`, which makes all passes."""
        if self.save == "none" and self.hessian == "none":
            raise ArgumentError('Nothing would be kept. Hint: LogIXArguments(save="grad").')
        run.finalize()
        run.setup(last_pass(self.hessian, self.save))
        run._note_hessian(self.hessian)

    def scheduler(self, run: LogIX) -> LogIXScheduler:
        """Return the passes over the data that the arguments ask for."""
        if self.save == "none" and self.hessian == "none":
            raise ArgumentError('Nothing would be kept. Hint: LogIXArguments(save="grad").')
        if self.lora and run.config.lora.init == "pca":
            return LogIXScheduler(run, lora="pca", hessian=self.hessian, save=self.save)
        return LogIXScheduler(run, hessian=self.hessian, save=self.save)

    def analysis(self) -> dict[str, Any]:
        """Return the options of scores."""
        return {
            "damping": self.influence_damping,
            "mode": self.influence_mode,
            "influence_groups": self.influence_groups,
        }

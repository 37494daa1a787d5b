"""``LogIX``: a run with LogIX's arguments, defaults and methods."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import nn

from sawlog._atomic import replacing
from sawlog._validate import one_of
from sawlog.capture import data_ids
from sawlog.errors import ArgumentError
from sawlog.influence import LogLoader, Logs
from sawlog.run_files._blocks import Report
from sawlog.run_files._folders import label_of
from sawlog.run_files._logix_config import LoggingConfig, LoRAConfig, StrPath, load, read_config
from sawlog.run_files._logix_options import is_dialect, translated
from sawlog.run_files._options import Compression, read
from sawlog.run_files._saved_options import load_options
from sawlog.torch._logix._influence import LogixInfluence
from sawlog.torch._logix._logs import LogixDataset, LogixLoader, LogixLog, PendingLog, ready
from sawlog.torch._run import Run

HESSIANS = ("none", "raw", "kfac", "ekfac")
_NOTE = "logix.json"


class LogIX(Run):
    """A run as LogIX has it: its configuration files, defaults, methods and results.

    It differs from :class:`sawlog.torch.Run` in what is typed, and in three defaults: ``watch``
    chooses Linear and convolutional layers, ``setup`` after ``eval`` keeps logging queries, and an
    id that occurs again gets a number, as ``"text#2"``.

    Args:
        project: the name of the run.
        config: the path of LogIX's YAML file, or a dict of its sections.
        logging_config: in place of the section ``logging``.
        root: in place of ``root_dir``.
        exists: as for :class:`sawlog.torch.Run`.
        sinks: as for :class:`sawlog.torch.Run`.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(3, 2)
    >>> run = LogIX("example", {"root_dir": tempfile.mkdtemp(), "lora": {"rank": 2}})
    >>> _ = run.watch(model)
    >>> run.add_lora()
    >>> run.setup({"grad": ["log"]})
    >>> with run(data_id=["a", "a"]):
    ...     model(torch.ones(2, 3)).sum().backward()
    >>> run.build_log_dataset().ids
    ['a', 'a#2']
    """

    def __init__(
        self,
        project: str,
        config: Mapping[str, Any] | StrPath | None = None,
        logging_config: LoggingConfig | None = None,
        *,
        root: StrPath | None = None,
        exists: str = "append",
        sinks: Sequence[Any] | None = None,
    ) -> None:
        if load(config) is None and Path(str(config)).name == "config.yaml":
            config = None  # LogIX's default path, without a file
        self.config = read_config(config)
        if logging_config is not None:
            self.config.logging = logging_config
        self._compress: Compression | None = None
        self._noted: dict[str, str] | None = None  # the curvature, and its compression
        self._times: Counter[str] = Counter()
        self._pending: PendingLog | None = None
        self._last: np.ndarray | None = None
        super().__init__(
            project,
            root=self.config.root_dir if root is None else root,
            exists=exists,
            config=self.config.logging.options(),
            sinks=sinks,
        )

    @property
    def log_dir(self) -> str:
        """The folder of the run."""
        return str(self.path)

    # -- what to log ------------------------------------------------------------------------------

    def watch(self, model: nn.Module, *args: Any, **options: Any) -> Report:
        """Choose the layers to log: ``watch(model, type_filter=None, name_filter=None)``.

        Without filters these are Linear, Conv1d and Conv2d layers. Other options are those of
        :meth:`sawlog.torch.Run.watch`.
        """
        filters = dict(zip(("type_filter", "name_filter"), args, strict=False))
        types, names = (
            options.pop(name, None) or filters.get(name) for name in ("type_filter", "name_filter")
        )
        options.setdefault("quiet", True)
        if not {"names", "types"} & {*options}:
            options["type_filter"] = list(types) if types else _layers()
            options["name_filter"] = names or None
        self._times.clear()
        return super().watch(model, **options)

    def add_lora(
        self,
        watch: bool = True,
        clear: bool = True,
        type_filter: Any = None,
        name_filter: Any = None,
        lora_path: str | None = None,
        lora_config: LoRAConfig | None = None,
        *,
        init: str | None = None,
    ) -> None:
        """Compress gradients from now on, as the section ``lora`` of the configuration says.

        The model stays as it is. ``watch``, ``clear`` and the filters are accepted and not needed.
        """
        del watch, clear, type_filter, name_filter, lora_path
        self._check_idle("add_lora")
        self.config.lora = self.config.lora if lora_config is None else lora_config
        self._compress = self.config.lora.compression(init)
        if "grad" in self.options.log:
            self._options = read(self.options, compress=self._compress)
        self._queries = None

    def set_lora_config(self, lora_config: LoRAConfig) -> None:
        """Set how gradients are compressed, once :meth:`add_lora` is called."""
        self.config.lora = lora_config

    def get_lora_config(self) -> LoRAConfig:
        """Return how gradients are compressed, once :meth:`add_lora` is called."""
        return self.config.lora

    def set_logging_config(self, logging_config: LoggingConfig) -> None:
        """Set how logs are stored, from the next :meth:`setup` on."""
        self.config.logging = logging_config

    def get_logging_config(self) -> LoggingConfig:
        """Return how logs are stored."""
        return self.config.logging

    def setup(self, options: Any = None, /, **more: Any) -> None:
        """Set what is logged: ``{"grad": ["log"], "forward": ["covariance"], ...}``.

        Options of :meth:`sawlog.torch.Run.setup` do as well. The compression is that of
        :meth:`add_lora`. Rows are stored if ``"log"`` is in the list. The same options again do
        nothing, so that a loop may call it for each batch; others end the pass.
        """
        values = read(options, **more).to_json() if not _is_mapping(options) else {}
        if _is_mapping(options):
            given = {**(options or {}), **more}
            values = translated(_lists(given)) if is_dialect(given) else dict(given)
            if values.get("statistic") and "save" not in values:
                values["save"] = []
            if not values.get("log", True) and not values.get("statistic"):
                values |= {"log": ["grad"], "save": ["grad"]}
        values = {**self.config.logging.options(), **values}
        if self._compress is not None and "grad" in _listed(values.get("log", "grad")):
            values.setdefault("compress", self._compress)
        if self._pass is not None:
            if read(values) == self.options:
                return
            self.finalize()
        evaluates = self.evaluates
        super().setup(values)
        self.evaluates = evaluates
        self._times.clear()

    def initialize_from_log(self, state_path: Any = None, lora_path: Any = None) -> None:
        """Take the options and the compression of the existing run.

        Raises:
            ArgumentError: nothing was logged yet.
        """
        del state_path, lora_path
        kept = load_options(self.path)
        if kept is None:
            raise ArgumentError(
                f"There are no logs at {self.path}. Hint: log the training examples first, with "
                "the same project and root_dir."
            )
        evaluates = self.evaluates
        self._check_idle("initialize_from_log")
        self._options, self._compress = kept[0], kept[0].compress
        self._queries, self.evaluates = None, evaluates
        self._times.clear()

    # -- a batch ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def __call__(
        self, data_id: Any, mask: Any = None, save: bool = False, **options: Any
    ) -> Iterator[Self]:
        """Log the batch whose forward and backward pass run inside the ``with``.

        An id that was used before in this pass gets a number.
        """
        del save
        ids = data_ids(self._numbered(data_id))
        if not self.evaluates:
            self._note_measured()
        with super().__call__(ids, mask=mask, **options):
            yield self
        self._last = ids
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.logs = self.get_log()

    def _numbered(self, data_id: Any) -> Any:
        several = list(data_id) if isinstance(data_id, (list, tuple)) else None
        if getattr(data_id, "ndim", 0) > 1:  # the inputs themselves, which are hashed
            several = [data_ids(data_id[i : i + 1])[0] for i in range(len(data_id))]
        if not several or not all(isinstance(each, str) for each in several):
            return data_id
        times = Counter[str]() if self.evaluates else self._times
        named = []
        for each in several:
            times[each] += 1
            named.append(each if times[each] == 1 else f"{each}#{times[each]}")
        return named

    def end(self, save: bool = False) -> None:
        """End the batch that :meth:`start` started."""
        del save
        super().end()

    def finalize(self) -> None:
        """End the pass over the data."""
        super().finalize()
        self._times.clear()

    def get_log(self, copy: bool = False) -> Any:
        """Return the logs of the last batch, as ``ids, log``; inside a ``with``, of its batch.

        Raises:
            ArgumentError: nothing was logged, or rows are not kept, only statistics.
        """
        del copy
        if self._batch is not None:
            self._pending = PendingLog()
            return self._pending
        if self.evaluates or self._last is None:
            return LogixLog(super().get_log())
        if not self.options.saved:
            raise ArgumentError(
                'The rows of the last batch were not kept. Hint: "log" in run.setup({"grad": '
                '["log", ...]}), or run.eval(), which keeps the last batch in memory.'
            )
        self.flush()
        stored = Logs(self.store_path)
        return LogixLog(stored.of(stored.gather(self._last)))

    def build_log_dataset(self, columns: Any = None, flatten: bool = False) -> Any:
        """Return all stored logs as a map-style dataset of ``(id, log)``.

        With ``columns`` its items are those of :meth:`sawlog.torch.Run.build_log_dataset`.
        """
        if columns is None or isinstance(columns, bool):
            return LogixDataset(self._stored(), flatten or bool(columns))
        return super().build_log_dataset(columns)

    def build_log_dataloader(
        self,
        batch_size: int = 16,
        num_workers: int = 0,
        pin_memory: bool = False,
        flatten: bool = False,
    ) -> LogLoader:
        """Return an iterable over all stored logs, in batches of ``(ids, log)``."""
        del num_workers, pin_memory
        return LogixLoader(self._stored(), batch_size, flatten)

    # -- scores -----------------------------------------------------------------------------------

    def _note_measured(self) -> None:
        """Note the curvature that a batch is measured for, if it is for one."""
        for kind in ("ekfac", "kfac"):
            if kind in self.options.statistic:
                self._note_hessian(kind)
        if "covariance" in self.options.statistic and "grad" in self.options.log:
            self._note_hessian("raw")

    def _note_hessian(self, kind: str) -> None:
        """Keep which curvature the logs are for, also for the next program.

        It holds for the current compression: LogIX forgets what it measured with another.
        """
        one_of("hessian", kind, HESSIANS)
        noted = {"hessian": kind, "compression": label_of(self.options)}
        if noted != self._noted:
            self._noted = noted
            self.path.mkdir(parents=True, exist_ok=True)
            with replacing(self.path / _NOTE) as file:
                file.write(json.dumps(noted).encode())

    @property
    def hessian(self) -> str:
        """The curvature that the passes over the data measured, under LogIX's name for it."""
        if self._noted is None and (self.path / _NOTE).exists():
            self._noted = json.loads((self.path / _NOTE).read_text())
        noted = self._noted or {}
        same = noted.get("compression") == label_of(self.options)
        return str(noted["hessian"]) if same else "none"

    @property
    def influence(self) -> LogixInfluence:
        """Influence of the stored examples, with what was measured as the Hessian."""
        found: LogixInfluence | None = self.__dict__.get("_influence")
        if found is None:
            found = self.__dict__["_influence"] = LogixInfluence(self._stored, lambda: self.hessian)
        found.options = {
            key: value for key, value in self.config.influence.items() if key in ("damping", "mode")
        }
        return found

    def add_analysis(self, analysis: Any = None) -> None:
        """Accept an analysis, which is not needed: ``run.influence`` has it."""

    def compute_influence(self, src_log: Any, tgt_log: Any, **options: Any) -> Any:
        """Score examples for queries; see :meth:`sawlog.influence.Influence.compute_influence`."""
        return self.influence.compute_influence(ready(src_log), ready(tgt_log), **options)

    def compute_influence_all(self, src_log: Any = None, loader: Any = None, **options: Any) -> Any:
        """Score all stored examples for queries, by default those of the last batch."""
        src_log = self.get_log() if src_log is None else src_log
        return self.influence.compute_influence_all(src_log, loader, **options)

    def compute_self_influence(self, src_log: Any = None, **options: Any) -> Any:
        """Score the influence of queries on themselves."""
        return self.influence.compute_self_influence(src_log, **options)

    def save_lora(self) -> None:
        """Accept the call, which is not needed: a seed determines projections."""


def _layers() -> list[type[nn.Module]]:
    """Return the types that are watched by default; transformers calls a Linear Conv1D."""
    found: list[type[nn.Module]] = [nn.Linear, nn.Conv1d, nn.Conv2d]
    module = sys.modules.get("transformers.pytorch_utils")
    return [*found, module.Conv1D] if module is not None else found


def _is_mapping(options: Any) -> bool:
    return options is None or isinstance(options, Mapping)


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else list(value)


def _lists(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose statistics are names; LogIX has a class for each."""
    return {
        key: [getattr(each, "logix_name", each) for each in value]
        if isinstance(value, (list, tuple))
        else value
        for key, value in given.items()
    }

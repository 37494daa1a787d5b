"""The YAML files of LogIX."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawlog._optional import require
from sawlog._validate import integer, one_of
from sawlog.errors import ArgumentError
from sawlog.run_files._encode import BYTES
from sawlog.run_files._options import Compression

_TOP = ("project", "log_dir", "root_dir", "logging", "lora", "influence")
_KINDS = {"random": "orthonormal", "pca": "pca"}

StrPath = str | os.PathLike[str]


@dataclasses.dataclass
class LoggingConfig:
    """How logs are stored: LogIX's class of that name.

    Args:
        flush_threshold: accepted and not needed: files are written in the background.
        num_workers: accepted and not needed.
        cpu_offload: whether statistics are kept in the memory of the CPU.
        log_dtype: the dtype of stored logs; ``"none"`` is float32.
        log_dir: accepted and not needed: it is the folder of the run.
    """

    flush_threshold: int = 1_000_000_000
    num_workers: int = 1
    cpu_offload: bool = False
    log_dtype: str = "none"
    log_dir: str | None = None

    def options(self) -> dict[str, Any]:
        """Return these settings as options of a run."""
        dtype = "float32" if self.log_dtype == "none" else self.log_dtype
        one_of("log_dtype", dtype, tuple(BYTES))
        return {"dtype": dtype, "offload": bool(self.cpu_offload)}


@dataclasses.dataclass
class LoRAConfig:
    """How gradients are compressed: LogIX's class of that name.

    Args:
        init: ``"random"`` or ``"pca"``.
        rank: the rank on both sides of each layer.
        parameter_sharing: accepted and not needed: random projections take no memory on disk.
        parameter_sharing_groups: the same.
    """

    init: str = "random"
    rank: int = 64
    parameter_sharing: bool = False
    parameter_sharing_groups: list[str] | None = None

    def compression(self, init: str | None = None) -> Compression:
        """Return the compression of a run; ``init`` is used in place of that of the file."""
        kind = one_of("lora.init", self.init if init is None else init, tuple(_KINDS))
        return Compression(_KINDS[str(kind)], rank=integer("lora.rank", self.rank, 1))


@dataclasses.dataclass
class LogixConfig:
    """A configuration of LogIX.

    Args:
        root_dir: the folder of all runs.
        logging: how logs are stored.
        lora: how gradients are compressed, once ``add_lora`` is called.
        influence: options of scores, such as ``damping`` and ``mode``.
    """

    root_dir: str = "./logix"
    logging: LoggingConfig = dataclasses.field(default_factory=LoggingConfig)
    lora: LoRAConfig = dataclasses.field(default_factory=LoRAConfig)
    influence: dict[str, Any] = dataclasses.field(default_factory=dict)


def load(config: Mapping[str, Any] | StrPath | None) -> Mapping[str, Any] | None:
    """Return what a configuration says as a dict; None if its file does not exist."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return config
    yaml: Any = require("yaml", "yaml", "A configuration in a YAML file")
    try:
        found = yaml.safe_load(Path(config).read_text())
    except FileNotFoundError:
        return None
    except (OSError, yaml.YAMLError) as error:
        raise ArgumentError(f"The configuration {config} cannot be read: {error}") from error
    return {} if found is None else found


def is_logix(values: Any) -> bool:
    """Return whether a configuration has sections of LogIX and nothing else.

    >>> is_logix({"lora": {"init": "pca"}}), is_logix({"compress": 8}), is_logix({})
    (True, False, False)
    """
    return isinstance(values, Mapping) and bool(values) and {*values} <= {*_TOP}


def read_config(config: Mapping[str, Any] | StrPath | None) -> LogixConfig:
    """Read a configuration of LogIX.

    Raises:
        ArgumentError: it has other keys than those of LogIX.

    >>> read_config({"root_dir": "./logs", "lora": {"rank": 8}}).lora.compression().rank
    8
    """
    values = load(config)
    if values is None:
        raise ArgumentError(
            f"The configuration {config} does not exist. Hint: leave config out, or give the path "
            "of a YAML file."
        )
    unknown = [key for key in values if key not in _TOP]
    if unknown:
        raise ArgumentError(
            f"A configuration of LogIX has no key {unknown[0]!r}; its keys are {', '.join(_TOP)}. "
            "Hint: options of sawlog are for sawlog.init(project, config=...)."
        )
    found = LogixConfig(root_dir=str(values.get("root_dir", "./logix")))
    found.logging = _section(LoggingConfig, values.get("logging"))
    found.lora = _section(LoRAConfig, values.get("lora"))
    found.influence = dict(values.get("influence") or {})
    return found


def _section(kind: type[Any], given: Any) -> Any:
    if isinstance(given, kind):
        return given
    values = dict(given or {})
    valid = [field.name for field in dataclasses.fields(kind)]
    unknown = [key for key in values if key not in valid]
    if unknown:
        raise ArgumentError(
            f"{kind.__name__} has no key {unknown[0]!r}; its keys are {', '.join(valid)}."
        )
    return kind(**values)

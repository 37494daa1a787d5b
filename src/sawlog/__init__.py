"""sawlog: one logging system for neural-network programs.

Names and subpackages are imported on first use (PEP 562), so ``import sawlog`` imports neither jax
nor torch, and ``sawlog.records.Records`` needs no further import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sawlog import _optional

if TYPE_CHECKING:
    from sawlog import errors as errors
    from sawlog import inspect as inspect
    from sawlog import records as records
    from sawlog._log import log as log
    from sawlog.errors import SawlogError as SawlogError
    from sawlog.jax import Reduction as Reduction
    from sawlog.jax import concat as concat
    from sawlog.jax import load as load
    from sawlog.jax import log_cotangent as log_cotangent
    from sawlog.jax import logdict as logdict
    from sawlog.jax import logify as logify
    from sawlog.jax import register_rule as register_rule
    from sawlog.jax import save as save
    from sawlog.jax import spool as spool
    from sawlog.jax import strip as strip
    from sawlog.jax import tap as tap
    from sawlog.logix import LogIX as LogIX
    from sawlog.logix import LogIXScheduler as LogIXScheduler
    from sawlog.logix import add_analysis as add_analysis
    from sawlog.logix import add_lora as add_lora
    from sawlog.logix import initialize_from_log as initialize_from_log
    from sawlog.torch import build_log_dataloader as build_log_dataloader
    from sawlog.torch import build_log_dataset as build_log_dataset
    from sawlog.torch import check as check
    from sawlog.torch import clear as clear
    from sawlog.torch import end as end
    from sawlog.torch import eval as eval
    from sawlog.torch import extract as extract
    from sawlog.torch import finalize as finalize
    from sawlog.torch import get_log as get_log
    from sawlog.torch import init as init
    from sawlog.torch import setup as setup
    from sawlog.torch import start as start
    from sawlog.torch import watch as watch

__version__ = "0.1.0"

_HOME = {
    "LogIX": "sawlog.logix",
    "LogIXScheduler": "sawlog.logix",
    "Reduction": "sawlog.jax",
    "SawlogError": "sawlog.errors",
    "add_analysis": "sawlog.logix",
    "add_lora": "sawlog.logix",
    "build_log_dataloader": "sawlog.torch",
    "build_log_dataset": "sawlog.torch",
    "check": "sawlog.torch",
    "clear": "sawlog.torch",
    "concat": "sawlog.jax",
    "end": "sawlog.torch",
    "eval": "sawlog.torch",
    "extract": "sawlog.torch",
    "finalize": "sawlog.torch",
    "get_log": "sawlog.torch",
    "init": "sawlog.torch",
    "initialize_from_log": "sawlog.logix",
    "load": "sawlog.jax",
    "log": "sawlog._log",
    "log_cotangent": "sawlog.jax",
    "logdict": "sawlog.jax",
    "logify": "sawlog.jax",
    "register_rule": "sawlog.jax",
    "save": "sawlog.jax",
    "setup": "sawlog.torch",
    "spool": "sawlog.jax",
    "start": "sawlog.torch",
    "strip": "sawlog.jax",
    "tap": "sawlog.jax",
    "watch": "sawlog.torch",
}
_SUBMODULES = (
    "accelerate",
    "analysis",
    "capture",
    "curvature",
    "errors",
    "factored",
    "huggingface",
    "influence",
    "inspect",
    "jax",
    "lightning",
    "loggers",
    "logix",
    "records",
    "sinks",
    "store",
    "testing",
    "torch",
    "utils",
)
# The packages that a module needs; each is also the name of the extra that installs it.
_FRAMEWORK = {
    "sawlog.accelerate": ("torch", "accelerate"),
    "sawlog.analysis": ("torch",),
    "sawlog.huggingface": ("torch", "transformers"),
    "sawlog.jax": ("jax",),
    "sawlog.lightning": ("torch", "lightning"),
    "sawlog.loggers": ("jax",),
    "sawlog.logix": ("torch",),
    "sawlog.torch": ("torch",),
    "sawlog.utils": ("torch",),
}
_EXTRA = {"accelerate": "huggingface", "transformers": "huggingface"}  # but for these packages

__all__ = [
    "LogIX",
    "LogIXScheduler",
    "Reduction",
    "SawlogError",
    "__version__",
    "add_analysis",
    "add_lora",
    "build_log_dataloader",
    "build_log_dataset",
    "check",
    "clear",
    "concat",
    "end",
    "errors",
    "eval",
    "extract",
    "finalize",
    "get_log",
    "init",
    "initialize_from_log",
    "load",
    "log",
    "log_cotangent",
    "logdict",
    "logify",
    "register_rule",
    "save",
    "setup",
    "spool",
    "start",
    "strip",
    "tap",
    "watch",
]


def __getattr__(name: str) -> Any:
    home = _home(name)
    if home is None:
        raise AttributeError(
            f"module 'sawlog' has no attribute {name!r}. Hint: it offers {', '.join(__all__)}"
        )
    for package in _FRAMEWORK.get(home, ()):
        _optional.require(package, _EXTRA.get(package, package), f"sawlog.{name}")
    module = importlib.import_module(home)
    value = getattr(module, name) if name in _HOME else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # Leave out names that would raise: `help(sawlog)` and others read every one.
    missing = {
        home
        for home, packages in _FRAMEWORK.items()
        if not all(map(_optional.is_installed, packages))
    }
    return sorted(
        name for name in {*globals(), *__all__, *_SUBMODULES} if _home(name) not in missing
    )


def _home(name: str) -> str | None:
    """Return the module that has a name, or is it; None for an unknown name."""
    return _HOME.get(name, f"sawlog.{name}" if name in _SUBMODULES else None)

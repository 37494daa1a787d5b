"""sawlog: one logging system for neural-network programs.

Names are loaded on first use (PEP 562): ``import sawlog`` imports neither jax nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sawlog import errors as errors
    from sawlog.errors import SawlogError as SawlogError
    from sawlog.jax import Reduction as Reduction
    from sawlog.jax import load as load
    from sawlog.jax import log as log
    from sawlog.jax import log_cotangent as log_cotangent
    from sawlog.jax import logdict as logdict
    from sawlog.jax import logify as logify
    from sawlog.jax import register_rule as register_rule
    from sawlog.jax import save as save
    from sawlog.jax import spool as spool
    from sawlog.jax import strip as strip
    from sawlog.jax import tap as tap

__version__ = "0.1.0"

_HOME = {
    "Reduction": "sawlog.jax",
    "SawlogError": "sawlog.errors",
    "load": "sawlog.jax",
    "log": "sawlog.jax",
    "log_cotangent": "sawlog.jax",
    "logdict": "sawlog.jax",
    "logify": "sawlog.jax",
    "register_rule": "sawlog.jax",
    "save": "sawlog.jax",
    "spool": "sawlog.jax",
    "strip": "sawlog.jax",
    "tap": "sawlog.jax",
}
_SUBMODULES = ("errors", "jax", "loggers", "sinks", "store")

__all__ = [
    "Reduction",
    "SawlogError",
    "__version__",
    "errors",
    "load",
    "log",
    "log_cotangent",
    "logdict",
    "logify",
    "register_rule",
    "save",
    "spool",
    "strip",
    "tap",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"sawlog.{name}")
    else:
        raise AttributeError(
            f"module 'sawlog' has no attribute {name!r}. Hint: it offers {', '.join(__all__)}"
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})

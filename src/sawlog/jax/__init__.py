"""Logging inside JAX programs: ``log``, and transformations of functions that log."""

from sawlog._optional import require

require("jax", "jax", "sawlog.jax")  # before anything below imports it

from sawlog.jax import _versions as _versions  # isort: skip  (raises for an unsupported JAX)

from sawlog.jax import _rules as _rules
from sawlog.jax._capture.api import capture as capture
from sawlog.jax._capture.captured import Captured as Captured
from sawlog.jax._capture.registration import register_capture_rule as register_capture_rule
from sawlog.jax._capture_run.gauss_newton import gauss_newton as gauss_newton
from sawlog.jax._capture_run.run import JaxRun as JaxRun
from sawlog.jax._core.reductions import Reduction as Reduction
from sawlog.jax._core.registry import register_rule as register_rule
from sawlog.jax._logdict.concat import concat as concat
from sawlog.jax._logdict.logdict import logdict as logdict
from sawlog.jax._rules.cotangent import log_cotangent as log_cotangent
from sawlog.jax._saving.disk import load as load
from sawlog.jax._saving.disk import save as save
from sawlog.jax._transforms.log import log as log
from sawlog.jax._transforms.spool import logify as logify
from sawlog.jax._transforms.spool import spool as spool
from sawlog.jax._transforms.strip import strip as strip
from sawlog.jax._transforms.tap import tap as tap
from sawlog.jax._watch.nonfinite import source_text as source_text
from sawlog.jax._watch.watch import watch as watch

__all__ = [
    "Captured",
    "JaxRun",
    "Reduction",
    "capture",
    "concat",
    "gauss_newton",
    "load",
    "log",
    "log_cotangent",
    "logdict",
    "logify",
    "register_capture_rule",
    "register_rule",
    "save",
    "source_text",
    "spool",
    "strip",
    "tap",
    "watch",
]

"""How XLA compiles in tests: for four CPU devices, and quickly rather than well.

Nearly half of the time of a JAX test is XLA's, for a program that runs once on a few numbers. The
flags leave out LLVM's optimisations and the slower of two ways to generate code on the CPU; what
programs mean is the same. XLA ends the process at a flag that it does not know, so those that this
version of jaxlib does not have are left out.
"""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path

DEVICES = "--xla_force_host_platform_device_count=4"
QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
)


def name_of(flag: str) -> str:
    """Without dashes and value."""
    return flag.lstrip("-").partition("=")[0]


def known(flags: Iterable[str]) -> list[str]:
    """The flags whose names are in the library of the jaxlib that is installed."""
    spec = importlib.util.find_spec("jaxlib")
    found = Path(spec.origin).parent.glob("libjax_common*") if spec and spec.origin else ()
    for library in found:
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return [flag for flag in flags if data.find(name_of(flag).encode()) >= 0]
    return []


def joined(given: str, more: Sequence[str]) -> str:
    """The value of ``XLA_FLAGS`` with more flags, but for those that it has already."""
    names = {name_of(flag) for flag in given.split()}
    return " ".join([*given.split(), *(flag for flag in more if name_of(flag) not in names)])

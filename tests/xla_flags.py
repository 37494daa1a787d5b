"""How XLA compiles in tests: for four CPU devices, and quickly rather than well.

Nearly half of the time of a JAX test is XLA's, for a program that runs once on a few numbers. The
flags leave out LLVM's optimisations and the slower of two ways to generate code on the CPU, and do
not split a small program into parts; what programs mean is the same. XLA ends the process at a flag
that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence

DEVICES = "--xla_force_host_platform_device_count=4"
QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
)
QUICK_BEFORE_0_11 = ("--xla_cpu_use_fusion_emitters=false",)


def quick(jaxlib: str) -> tuple[str, ...]:
    """The flags for quick compilation that this version of jaxlib has.

    >>> len(quick("0.10.2")), len(quick("0.12.0.1"))
    (4, 3)
    """
    older = tuple(map(int, jaxlib.split(".")[:2])) < (0, 11)
    return QUICK + QUICK_BEFORE_0_11 if older else QUICK


def name_of(flag: str) -> str:
    """Without dashes and value."""
    return flag.lstrip("-").partition("=")[0]


def joined(given: str, more: Sequence[str]) -> str:
    """The value of ``XLA_FLAGS`` with more flags, but for those that it has already."""
    names = {name_of(flag) for flag in given.split()}
    return " ".join([*given.split(), *(flag for flag in more if name_of(flag) not in names)])

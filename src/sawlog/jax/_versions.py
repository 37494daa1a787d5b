"""Which versions of JAX sawlog works with, and what is said to any other."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax

from sawlog.errors import UnsupportedJaxError

#: The oldest version that works, and the first one that nobody tried; as in ``pyproject.toml``.
OLDEST, UNTRIED = (0, 10, 2), (0, 13)

#: Set to "1" to try a version of JAX that nobody tried before.
ANYWAY = "SAWLOG_ANY_JAX"


def check() -> None:
    """Refuse a JAX that is too old, or newer than any that was tried.

    Raises:
        UnsupportedJaxError: naming the versions that work.
    """
    version = jax.__version_info__
    if version < OLDEST:
        raise misfit(["it is too old"])
    if version >= UNTRIED and os.environ.get(ANYWAY) != "1":
        raise misfit(["it is newer than any version that was tried, and might lose logs silently"])


def misfit(reasons: Sequence[str]) -> UnsupportedJaxError:
    """The error that says why the installed JAX does not fit, and which versions do."""
    oldest, untried = (".".join(map(str, version)) for version in (OLDEST, UNTRIED))
    return UnsupportedJaxError(
        f"sawlog works with JAX {oldest} and newer, below {untried}; JAX {jax.__version__} is "
        f"installed, and it does not fit: {'; '.join(reasons)}. "
        f'Hint: pip install "jax>={oldest},<{untried}", or a newer sawlog.',
        name="jax",
    )


check()

"""The supported versions of JAX, and the error for any other."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax

from sawlog.errors import UnsupportedJaxError

#: The oldest supported version, and the first one that is not tested; as in ``pyproject.toml``.
OLDEST, UNTRIED = (0, 10, 2), (0, 13)

#: Set this variable to "1" to try a newer, untested version of JAX.
ANYWAY = "SAWLOG_ANY_JAX"


def check() -> None:
    """Check the installed version of JAX.

    Raises:
        UnsupportedJaxError: it is too old, or newer than the tested versions. The message names
            the supported versions.
    """
    version = jax.__version_info__
    if version < OLDEST:
        raise misfit(["it is too old"])
    if version >= UNTRIED and os.environ.get(ANYWAY) != "1":
        raise misfit(["it is newer than all tested versions, and might lose logs silently"])


def misfit(reasons: Sequence[str]) -> UnsupportedJaxError:
    """Return the error that says why the installed JAX is unsupported, and which are supported."""
    oldest, untried = (".".join(map(str, version)) for version in (OLDEST, UNTRIED))
    return UnsupportedJaxError(
        f"sawlog supports JAX {oldest} and newer, below {untried}; JAX {jax.__version__} is "
        f"installed, and it is unsupported: {'; '.join(reasons)}. "
        f'Hint: pip install "jax>={oldest},<{untried}", or a newer sawlog.',
        name="jax",
    )


check()

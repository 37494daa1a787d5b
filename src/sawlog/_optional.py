"""Optional packages, which are imported where they are used, with :func:`require`."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from sawlog.errors import MissingPackageError


def require(package: str, extra: str, needed_by: str) -> ModuleType:
    """Import ``package``.

    Raises:
        MissingPackageError: it is not installed, or broken; tells what needs it and how to install
            it.

    >>> require("json", "none", "an example").__name__
    'json'
    """
    top = package.partition(".")[0]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != top:
            raise  # the package is installed, and something that it needs is missing
        trouble = "is not installed."
        if error.name is None and is_installed(top):  # jax raises this if jaxlib is missing
            trouble = f"is installed, but cannot be imported: {error}"
        raise MissingPackageError(
            f"{needed_by} needs the package '{package}', which {trouble} "
            f'Hint: pip install "sawlog[{extra}]"',
            name=package,
        ) from error


def is_installed(package: str) -> bool:
    """Return whether ``package`` is installed, without importing it.

    >>> is_installed("json"), is_installed("no_such_package")
    (True, False)
    """
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # an import hook blocks it, or a fake is in its place
        return False

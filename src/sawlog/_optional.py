"""Optional packages are imported where they are used, through :func:`require`."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from sawlog.errors import MissingPackageError


def require(package: str, extra: str, needed_by: str) -> ModuleType:
    """Import ``package`` or say who needs it and how to install it.

    >>> require("json", "none", "an example").__name__
    'json'
    """
    top = package.partition(".")[0]
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != top:
            raise  # the package is there, but something it needs is broken: do not hide that
        trouble = "is not installed."
        if error.name is None and is_installed(top):  # its own words: jax says it of jaxlib
            trouble = f"is installed, but cannot be imported: {error}"
        raise MissingPackageError(
            f"{needed_by} needs the package '{package}', which {trouble} "
            f'Hint: pip install "sawlog[{extra}]"',
            name=package,
        ) from error


def is_installed(package: str) -> bool:
    """Whether ``package`` can be found; it is not imported.

    >>> is_installed("json"), is_installed("no_such_package")
    (True, False)
    """
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # somebody blocks it, or put something odd in its place
        return False

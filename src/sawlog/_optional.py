"""Optional packages are imported where they are used, through :func:`require`."""

from __future__ import annotations

import importlib
from types import ModuleType

from sawlog.errors import MissingPackageError


def require(package: str, extra: str, needed_by: str) -> ModuleType:
    """Import ``package`` or say who needs it and how to install it.

    >>> require("json", "none", "an example").__name__
    'json'
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != package.partition(".")[0]:
            raise  # the package is there, but something it needs is broken: do not hide that
        raise MissingPackageError(
            f"{needed_by} needs the package '{package}', which is not installed. "
            f'Hint: pip install "sawlog[{extra}]"',
            name=package,
        ) from error

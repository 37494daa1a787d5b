"""Contract tests that ship with sawlog, for code that implements its interfaces.

Needs pytest. Subclass a contract in a test module of your own, and change the hooks to make what
you want to have tested; pytest then collects every test of the contract:

.. code-block:: python

    from sawlog.testing import StoreContract

    class TestMyStore(StoreContract):
        def create(self, path, **options):
            return my_package.create(path, **options)

Names are loaded on first use, so that importing this module does not import pytest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sawlog.errors import MissingPackageError

if TYPE_CHECKING:
    from sawlog.testing._capture import CaptureContract as CaptureContract
    from sawlog.testing._capture import assert_same_runs as assert_same_runs
    from sawlog.testing._capture_cases import CASES as CASES
    from sawlog.testing._capture_cases import CaptureCase as CaptureCase
    from sawlog.testing._equality import assert_same as assert_same
    from sawlog.testing._equality import sample as sample
    from sawlog.testing._sinks import SinkContract as SinkContract
    from sawlog.testing._store import StoreContract as StoreContract

_HOME = {
    "CASES": "sawlog.testing._capture_cases",
    "CaptureCase": "sawlog.testing._capture_cases",
    "CaptureContract": "sawlog.testing._capture",
    "SinkContract": "sawlog.testing._sinks",
    "StoreContract": "sawlog.testing._store",
    "assert_same": "sawlog.testing._equality",
    "assert_same_runs": "sawlog.testing._capture",
    "sample": "sawlog.testing._equality",
}

__all__ = [
    "CASES",
    "CaptureCase",
    "CaptureContract",
    "SinkContract",
    "StoreContract",
    "assert_same",
    "assert_same_runs",
    "sample",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'sawlog.testing' has no attribute {name!r}. "
            f"Hint: it offers {', '.join(__all__)}"
        )
    try:
        value = getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise MissingPackageError(
            f"sawlog.testing.{name} needs the package 'pytest', which is not installed. "
            "Hint: pip install pytest",
            name="pytest",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Set up the test process before any test module imports jax; no test may depend on the load.

Hypothesis has no deadlines, and does not mind a machine that is busy.
"""

import os
from importlib.metadata import version

import pytest
from hypothesis import HealthCheck, settings

from tests.left_out import FRAMEWORKS, LEFT_OUT, complaint
from tests.thorough import THOROUGH
from tests.xla_flags import DEVICES, joined, quick

_MORE = [DEVICES] if THOROUGH else [DEVICES, *quick(version("jaxlib"))]
os.environ["XLA_FLAGS"] = joined(os.environ.get("XLA_FLAGS", ""), _MORE)

settings.register_profile("sawlog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sawlog")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first, so that no worker is left alone with one of them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_configure() -> None:
    """Nothing is skipped only because a framework happens to be missing."""
    if wrong := complaint():
        raise pytest.UsageError(wrong)


def pytest_report_header() -> str:
    """Which frameworks the tests run with, and which they are asked to leave out."""
    there = [f"{name} {version(name)}" for name in FRAMEWORKS if name not in LEFT_OUT]
    return ", ".join(there + [f"{name} left out" for name in sorted(LEFT_OUT)])

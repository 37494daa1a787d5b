"""Set up the test process before any test module imports jax: four CPU devices."""

import os
from importlib.metadata import version

import pytest

from tests.left_out import FRAMEWORKS, LEFT_OUT, complaint

_FLAG = "--xla_force_host_platform_device_count=4"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()


def pytest_configure() -> None:
    """Nothing is skipped only because a framework happens to be missing."""
    if wrong := complaint():
        raise pytest.UsageError(wrong)


def pytest_report_header() -> str:
    """Which frameworks the tests run with, and which they are asked to leave out."""
    there = [f"{name} {version(name)}" for name in FRAMEWORKS if name not in LEFT_OUT]
    return ", ".join(there + [f"{name} left out" for name in sorted(LEFT_OUT)])

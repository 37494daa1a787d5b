"""Set up the test process before any test module imports jax: four CPU devices."""

import os

import pytest

from tests.left_out import complaint

_FLAG = "--xla_force_host_platform_device_count=4"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()


def pytest_configure() -> None:
    """Nothing is skipped only because a framework happens to be missing."""
    if wrong := complaint():
        raise pytest.UsageError(wrong)

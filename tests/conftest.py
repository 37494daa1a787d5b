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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Variants take turns; long tests come first, so that no worker is left alone with one."""
    if not THOROUGH and "::" not in "".join(config.args):
        left_out = set(variants_left_out(items))
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def variants_left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Every second variant of each test that is marked with ``turns``."""
    seen: dict[str, int] = {}
    left_out = []
    for item in items:
        if item.get_closest_marker("turns") is not None:
            test = item.nodeid.partition("[")[0]
            seen[test] = seen.get(test, 0) + 1
            if seen[test] % 2 == 0:
                left_out.append(item)
    return left_out


def pytest_configure() -> None:
    """Nothing is skipped only because a framework happens to be missing."""
    if wrong := complaint():
        raise pytest.UsageError(wrong)


def pytest_report_header() -> str:
    """Which frameworks the tests run with, and which they are asked to leave out."""
    there = [f"{name} {version(name)}" for name in FRAMEWORKS if name not in LEFT_OUT]
    return ", ".join(there + [f"{name} left out" for name in sorted(LEFT_OUT)])

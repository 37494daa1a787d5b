"""Tests run with the flags that they should have, and XLA does not end at one of them."""

import os
from importlib.metadata import version

from tests.thorough import THOROUGH
from tests.xla_flags import DEVICES, joined, quick


def test_given_flags_count_and_are_not_repeated():
    assert joined("", [DEVICES]) == DEVICES
    given = "--xla_force_host_platform_device_count=2 --xla_a=b"
    assert joined(given, [DEVICES, "--xla_c=d"]) == f"{given} --xla_c=d"


def test_this_process_has_them():
    flags = os.environ["XLA_FLAGS"]
    assert "xla_force_host_platform_device_count" in flags
    assert THOROUGH or all(flag.partition("=")[0] in flags for flag in quick(version("jaxlib")))

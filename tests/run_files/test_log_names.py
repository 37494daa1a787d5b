"""Names of logs: built and parsed in one place."""

import pytest

from sawlog.run_files._log_names import LogName


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("forward/fc1", LogName("forward", "fc1")),
        ("forward/", LogName("forward", "")),  # the model itself
        ("backward/fc1#2", LogName("backward", "fc1", 2)),
        ("backward/a/b.c#10", LogName("backward", "a/b.c", 10)),
        ("forward/#3", LogName("forward", "", 3)),
        ("forward/a#2#3", LogName("forward", "a#2", 3)),
        ("forward/a#1", LogName("forward", "a#1")),  # first calls have no number
        ("forward/a#02", LogName("forward", "a#02")),
        ("forward/a#x", LogName("forward", "a#x")),
        ("forward/a\nb#2", LogName("forward", "a\nb", 2)),
        ("grad/fc1.weight", LogName("grad", "fc1.weight")),
        ("grad/fc1.weight#2", LogName("grad", "fc1.weight#2")),  # gradients are sums over calls
    ],
)
def test_names_are_parsed_as_they_are_built(text, name):
    assert LogName.parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize("text", ["", "loss", "grad", "gradient/w", "train/forward/a", "Forward/a"])
def test_other_names(text):
    assert LogName.parse(text) is None

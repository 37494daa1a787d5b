"""Programs that are refused, with the line that the error names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sawlog import errors


def line_of(marker: str) -> str:
    """`file:line` of the one line here that ends in the comment `# marker`."""
    with open(__file__) as source:
        found = [i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}")]
    assert len(found) == 1, (marker, found)
    return f"{__file__}:{found[0]}"


def message(kind: type[BaseException], fun: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of the error that a call raises, which is of exactly this class."""
    with pytest.raises(kind) as caught:
        fun(*args, **kwargs)
    assert type(caught.value) is kind
    assert isinstance(caught.value, errors.SawlogError)
    return str(caught.value)


def has(text: str, *words: str) -> None:
    assert [word for word in words if word not in text] == []

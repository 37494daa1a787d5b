"""The texts of errors, and what they must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sawlog import errors


def message(kind: type[BaseException], fun: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of the error that a call raises, which is of exactly this class."""
    with pytest.raises(kind) as caught:
        fun(*args, **kwargs)
    assert type(caught.value) is kind
    assert isinstance(caught.value, errors.SawlogError)
    return str(caught.value)


def has(text: str, *words: str) -> None:
    assert [word for word in words if word not in text] == []

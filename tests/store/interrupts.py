"""Raise an exception at a chosen line of a call, whoever's line that is."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupted:
    """What became of a call."""

    def __init__(self) -> None:
        self.lines = 0
        self.where = ""
        self.value: Any = None
        self.error: BaseException | None = None


def interrupted(
    call: Callable[[], Any], at: int, kind: type[BaseException], only: str = ""
) -> Interrupted:
    """Run ``call``, with an exception of ``kind`` at its line number ``at``, counted as they run.

    ``only``: a part of the names of files whose lines count, whatever the folder of the project and
    of its environment is called; otherwise all of Python's. No garbage is collected meanwhile: an
    exception in a callback of the collector would not reach the call.
    """
    out, own = Interrupted(), sys._getframe().f_code.co_filename

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name == own:
            return trace
        if only and (only not in name or "site-packages" in name):
            return _through
        if event == "line":
            out.lines += 1
            if out.lines == at:
                out.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise kind("injected")
        return trace

    def _through(frame: FrameType, event: str, _: Any) -> Any:
        return _through

    collects = gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        out.value = call()
    except BaseException as error:
        out.error = error
    finally:
        sys.settrace(None)
        if collects:
            gc.enable()
    return out

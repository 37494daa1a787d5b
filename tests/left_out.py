"""Frameworks that this run of the tests goes without, because whoever started it said so.

``SAWLOG_LEAVE_OUT="torch"`` leaves out what needs PyTorch, as ``make test-newest`` does. Without
the variable nothing is left out: a framework that is not installed is then an error at the start.
"""

import importlib.util
import os

FRAMEWORKS = ("jax", "torch")
LEFT_OUT = frozenset(os.environ.get("SAWLOG_LEAVE_OUT", "").split())


def complaint() -> str | None:
    """What is wrong with the choice of frameworks, if anything."""
    if unknown := LEFT_OUT - set(FRAMEWORKS):
        return f"SAWLOG_LEAVE_OUT can name {', '.join(FRAMEWORKS)}; it names {', '.join(unknown)}"
    needed = [name for name in FRAMEWORKS if name not in LEFT_OUT]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    names = " ".join(missing)
    return (
        f"the tests need {names}, which is not installed. Hint: make test sets everything up; "
        f'SAWLOG_LEAVE_OUT="{names}" leaves out what needs it'
    )

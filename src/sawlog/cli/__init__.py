"""The command line: what is in a store, is it intact, make it smaller, what does it say.

``sawlog ls``, ``show``, ``verify``, ``compact``, ``repair``, ``export``, ``attribute`` and
``self-influence``; ``sawlog --help`` says what each does. Tables for people, ``--json`` for
programs, progress at a terminal only.
"""

from __future__ import annotations

from sawlog.cli._main import main as main

__all__ = ["main"]

"""``sawlog demo``: what sawlog does, told on small models in a minute or two.

Needs the extra ``demo``, and neither a terminal nor a network. :func:`run_demo` is the story;
``sawlog demo`` and ``make demo`` run it.
"""

from __future__ import annotations

from sawlog.demo._sizes import Sizes as Sizes
from sawlog.demo._story import run_demo as run_demo

__all__ = ["Sizes", "run_demo"]

"""The console: a live table of what all runs log.

``_digest`` makes a few numbers of what is written, ``_state`` keeps them, ``_view`` makes text of
that, and ``_output`` shows it, on a terminal, in a notebook or as lines. Writing never draws: a
thread does, a few times a second.
"""

from __future__ import annotations

from sawlog.sinks._console._dashboard import Dashboard as Dashboard
from sawlog.sinks._console._sink import ConsoleSink as ConsoleSink

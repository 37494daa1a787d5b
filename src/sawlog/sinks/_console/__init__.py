"""The console: a live table of what all runs log.

``_digest`` reduces what is written to a few numbers, ``_dashboard_state`` keeps them, ``_view``
formats them as text, and ``_output`` shows that on a terminal, in a notebook or as lines. Writing
never draws: a thread does, a few times a second. Only a dashboard that is shown needs rich.
"""

from __future__ import annotations

from sawlog.sinks._console._dashboard import Dashboard as Dashboard
from sawlog.sinks._console._sink import ConsoleSink as ConsoleSink

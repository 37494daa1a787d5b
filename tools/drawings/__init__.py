"""Draw the pictures of the documentation: ``python -m tools.drawings`` writes ``docs/drawings``.

``PICTURES`` has a function for each file. A test compares the files with what is drawn.
"""

from __future__ import annotations

from tools.drawings._overview import OVERVIEW
from tools.drawings._scores import SCORES
from tools.drawings._transformations import TRANSFORMATIONS

PICTURES = {**OVERVIEW, **TRANSFORMATIONS, **SCORES}

"""Put the drawings of ``docs/drawings`` into the page.

A picture in an ``<img>`` knows nothing of the page's light and dark theme. As a part of the page it
takes the colours from there. Elsewhere, such as on a Git server, the same file is a plain picture.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

FOLDER = "drawings"


def inline_drawings(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace images of drawings by their SVG text."""
    del docname
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".svg" and path.parent.name == FOLDER:
            svg = path.read_text(encoding="utf-8")
            html = f'<div class="drawing" tabindex="0">{svg}</div>'
            image.replace_self(nodes.raw("", html, format="html"))

"""Remove the empty line that ends blocks of doctests, which is needed in docstrings only."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx


def trim_code(app: Sphinx, doctree: nodes.document) -> None:
    """Remove empty lines at the end of blocks of code."""
    del app
    for block in doctree.findall(nodes.literal_block):
        if (text := block.astext()) == block.rawsource:
            block.rawsource = text.rstrip("\n")
            block.children = [nodes.Text(block.rawsource)]

"""The Sphinx extension of the documentation: what ``docs/conf.py`` needs beyond public extensions.

- ``{public-api} MODULE`` documents everything in the ``__all__`` of a module (``_api.py``).
- Drawings are put into the page, so that they have its colours (``_drawings.py``).
- Links to pages outside of ``docs/`` lead to the pages that include them (``_links.py``).
- Blocks of code end without empty lines (``_trim.py``).
- A built page that would load something from the network is an error (``_offline.py``).
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from tools.docs_site._api import PublicApi
from tools.docs_site._drawings import inline_drawings
from tools.docs_site._links import include_read, source_read
from tools.docs_site._offline import check_pages
from tools.docs_site._trim import trim_code


def setup(app: Sphinx) -> dict[str, Any]:
    """Register directives and event handlers."""
    app.add_directive("public-api", PublicApi)
    app.connect("source-read", source_read)
    app.connect("include-read", include_read)
    app.connect("doctree-read", trim_code)
    app.connect("doctree-resolved", inline_drawings)
    app.connect("build-finished", check_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Links of pages to files outside of ``docs/``.

On a Git server a page links to ``../src/sawlog/store/FORMAT.md``. In the documentation that file is
included by a page of its own, and the link leads there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from sphinx.application import Sphinx

#: A file, seen from the root of the repository, and the page that has its text.
PAGE_OF = {
    "README.md": "docs/index.md",
    "ARCHITECTURE.md": "docs/project/architecture.md",
    "CHANGELOG.md": "docs/project/changelog.md",
    "CONTRIBUTING.md": "docs/project/contributing.md",
    "src/sawlog/store/FORMAT.md": "docs/reference/format.md",
}

LINK = re.compile(r"\]\((?!\w+:|#|<)([^)#\s]+)(#[^)\s]*)?\)")


def relinked(text: str, file: str, page: str) -> str:
    """Return the text of a file, as it is linked from a page; both seen from the root."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), match[1]))
        target = PAGE_OF.get(target, target)
        return f"]({posixpath.relpath(target, posixpath.dirname(page))}{match[2] or ''})"

    return LINK.sub(link, text)


def source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Change the links of a page."""
    page = f"docs/{docname}.md"
    if Path(app.srcdir, f"{docname}.md").is_file():
        source[0] = relinked(source[0], page, page)


def include_read(app: Sphinx, path: Path, docname: str, source: list[str]) -> None:
    """Change the links of a file that a page includes."""
    del docname
    file = Path(app.srcdir, path).resolve().relative_to(Path(app.srcdir).parent).as_posix()
    if file in PAGE_OF:
        source[0] = relinked(source[0], file, PAGE_OF[file])

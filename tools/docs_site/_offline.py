"""Nothing in a built page comes from the network: scripts, styles, fonts and images are local."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

_REMOTE = r"""["']?(?:https?:)?//[^"')\s>]+"""
_LOADS = (
    re.compile(rf"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\ssrc={_REMOTE}", re.I),
    re.compile(
        rf"<link\b(?=[^>]*\brel=.?(?:stylesheet|icon|preload|preconnect))[^>]*?href={_REMOTE}", re.I
    ),
    re.compile(rf"@import\s+(?:url\()?{_REMOTE}", re.I),
    re.compile(rf"\burl\({_REMOTE}", re.I),
)


def remote_loads(text: str) -> list[str]:
    """Return all places of a page or style sheet that load something from another machine."""
    return [match[0] for pattern in _LOADS for match in pattern.finditer(text)]


def check_pages(app: Sphinx, exception: Exception | None) -> None:
    """Raise if a built page loads something from the network."""
    if exception is not None or app.builder.format != "html":
        return
    found = [
        f"{path.name}: {each}"
        for suffix in ("*.html", "*.css")
        for path in sorted(Path(app.outdir).rglob(suffix))
        for each in remote_loads(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise SphinxError("These pages load something from the network:\n" + "\n".join(found))

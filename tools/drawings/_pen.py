"""``Pen``: boxes, arrows, cells and text as SVG that is readable on light and dark pages."""

from __future__ import annotations

import math
from html import escape

#: Colours by role, on light and on dark paper. A page may set the variables itself.
COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "fill": ("#f3f4f6", "#21262d"),
    "log": ("#9a4b00", "#ffb066"),
    "tint": ("#fdf0e1", "#3a2a18"),
    "good": ("#1a7f37", "#56d364"),
    "bad": ("#b42318", "#ff7b72"),
}

_RULES = """
.sd{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:15px}
.sd text{fill:var(--sd-ink)}
.sd .code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13.5px;white-space:pre}
.sd .small{font-size:13px}
.sd .soft{fill:var(--sd-soft)}
.sd .bold{font-weight:600}
.sd .log{fill:var(--sd-log)}
.sd .good{fill:var(--sd-good)}
.sd .bad{fill:var(--sd-bad)}
.sd .box{fill:var(--sd-fill);stroke:var(--sd-soft)}
.sd .cell{fill:var(--sd-tint);stroke:var(--sd-log)}
.sd .gap{fill:none;stroke:var(--sd-soft);stroke-dasharray:4 3}
.sd .frame{fill:none;stroke:var(--sd-soft)}
.sd .line{fill:none;stroke:var(--sd-ink);stroke-width:1.5}
.sd .thin{fill:none;stroke:var(--sd-soft);stroke-width:1.2}
.sd .mark{fill:none;stroke:var(--sd-log);stroke-width:1.8}
.sd .helps{fill:none;stroke:var(--sd-good);stroke-width:2.5}
.sd .hurts{fill:none;stroke:var(--sd-bad);stroke-width:2.5}
"""


def _style() -> str:
    light, dark = (
        "".join(f"--sd-{name}:{pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1)
    )
    return f".sd{{{light}}}\n@media (prefers-color-scheme:dark){{.sd{{{dark}}}}}{_RULES}"


class Pen:
    """Collects shapes, and returns the picture as text."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._shapes: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", at: str = "start") -> None:
        """Write one line; ``at`` is ``start``, ``middle`` or ``end``."""
        self._add(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{at}">{escape(words)}</text>'
        )

    def code(self, x: float, y: float, lines: str, step: float = 19) -> None:
        """Write lines of code; a line that logs is in the colour of logs."""
        for i, line in enumerate(lines.splitlines()):
            kind = "code log" if "log" in line else "code"
            self.text(x, y + i * step, line, kind)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """Draw a rectangle with round corners."""
        size = f'width="{width:g}" height="{height:g}" rx="6"'
        self._add(f'<rect x="{x:g}" y="{y:g}" {size} class="{kind}"/>')

    def cell(
        self, x: float, y: float, words: str = "", kind: str = "cell", size: float = 40
    ) -> None:
        """Draw one entry of a log, ``size`` wide and 28 high."""
        self._add(f'<rect x="{x:g}" y="{y:g}" width="{size:g}" height="28" rx="3" class="{kind}"/>')
        if words:
            self.text(x + size / 2, y + 19, words, "small", "middle")

    def cells(self, x: float, y: float, words: list[str], size: float = 40) -> None:
        """Draw entries side by side; an empty one is a gap."""
        for i, each in enumerate(words):
            self.cell(x + i * (size + 4), y, each, "cell" if each else "gap", size)

    def line(
        self, points: list[tuple[float, float]], kind: str = "line", head: bool = True
    ) -> None:
        """Draw a line through points, with the head of an arrow at its end."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self._add(f'<path d="M{path}" class="{kind}"/>')
        if head:
            self._head(points[-2], points[-1], kind)

    def curve(
        self, path: str, before: tuple[float, float], end: tuple[float, float], kind: str = "line"
    ) -> None:
        """Draw an SVG path that arrives at ``end`` from the direction of ``before``."""
        self._add(f'<path d="{path}" class="{kind}"/>')
        self._head(before, end, kind)

    def dot(self, x: float, y: float) -> None:
        """Draw the place of a log."""
        self._add(f'<circle cx="{x:g}" cy="{y:g}" r="5" style="fill:var(--sd-log)"/>')

    def svg(self) -> str:
        """Return the picture."""
        title = escape(self.title)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="sd" role="img" aria-label="{title}"'
        view = (
            f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        )
        return "\n".join(
            [f"{head} {view}>", f"<style>{_style()}</style>", *self._shapes, "</svg>", ""]
        )

    def _head(self, before: tuple[float, float], end: tuple[float, float], kind: str) -> None:
        angle = math.atan2(end[1] - before[1], end[0] - before[0])
        sides = [
            f"{end[0] - 8 * math.cos(angle + turn):.1f} {end[1] - 8 * math.sin(angle + turn):.1f}"
            for turn in (0.45, -0.45)
        ]
        self._add(f'<path d="M{sides[0]} L{end[0]:g} {end[1]:g} L{sides[1]}" class="{kind}"/>')

    def _add(self, shape: str) -> None:
        self._shapes.append(shape)

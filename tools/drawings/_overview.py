"""The whole of sawlog in one picture."""

from __future__ import annotations

from tools.drawings._pen import Pen


def overview() -> str:
    """Programs, what collects their logs, and what is done with them."""
    pen = Pen(
        640,
        250,
        "Programs log values; transformations, loggers and runs collect them for you to use.",
    )
    columns = (
        (
            16,
            168,
            "your program",
            ("JAX: sawlog.log", "PyTorch: with run(ids)", "Trainer: a callback"),
        ),
        (236, 168, "what collects", ("spool: return logs", "tap: stream logs", "loggers and runs")),
        (
            456,
            168,
            "what you get",
            ("arrays, curves", "W&B, TensorBoard, ...", "a store, a page", "scores of examples"),
        ),
    )
    for x, width, title, lines in columns:
        pen.text(x + width / 2, 28, title, "bold", "middle")
        for i, line in enumerate(lines):
            y = 44 + 48 * i
            pen.box(x, y, width, 38, "cell" if x == 16 else "box")
            pen.text(x + width / 2, y + 24, line, "small", "middle")
    for x in (192, 412):
        for y in (63, 111, 159):
            pen.line([(x, y), (x + 36, y)])
    pen.line([(412, 165), (448, 204)])
    return pen.svg()


OVERVIEW = {"overview": overview}

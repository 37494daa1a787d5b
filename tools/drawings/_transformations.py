"""What a log means under each transformation of JAX: a program, and its logs beside it."""

from __future__ import annotations

from tools.drawings._pen import Pen

LEFT, RIGHT, WIDTH = 16, 348, 640


def _program(title: str, height: int, code: str) -> Pen:
    pen = Pen(WIDTH, height, title)
    lines = code.count("\n") + 1
    tall = 19 * lines + 22
    pen.box(LEFT, 16, 276, tall)
    pen.code(LEFT + 14, 40, code)
    pen.line([(LEFT + 284, 16 + tall / 2), (RIGHT - 14, 16 + tall / 2)])
    return pen


def jit() -> str:
    """One log, one value."""
    pen = _program(
        "A jitted function with one log: the logs have one value, without an extra axis.",
        130,
        '@jax.jit\ndef f(x):\n    log({"y": 2 * x})\n    return x + 1',
    )
    pen.text(RIGHT, 36, 'logs["y"]', "code")
    pen.cell(RIGHT, 48, "6.0", size=52)
    pen.text(RIGHT, 102, "the value of f(3.0), shape []", "small soft")
    return pen.svg()


def scan() -> str:
    """Draw a loop of known length."""
    pen = _program(
        "A log in a scan of five steps: one entry for each step, in the order of execution.",
        150,
        'def body(w, i):\n    ...\n    log({"loss": loss}, step=i)\n    return w, None\n'
        "lax.scan(body, w, arange(5))",
    )
    pen.text(RIGHT, 36, 'logs["loss"]', "code")
    pen.cells(RIGHT, 48, ["4.0", "2.6", "1.6", "1.0", "0.7"], 48)
    for i in range(5):
        pen.text(RIGHT + 24 + 52 * i, 96, str(i), "small soft", "middle")
    pen.text(RIGHT, 122, 'logs.step["loss"], shape [5]', "small soft")
    return pen.svg()


def cond() -> str:
    """Only the branch that ran."""
    pen = _program(
        "A log in each branch of a cond: only the branch that ran has an entry.",
        150,
        'lax.cond(\n    x > 0,\n    lambda: log({"up": x}),\n    lambda: log({"down": x}),\n)',
    )
    pen.text(RIGHT, 36, 'logs["up"]', "code")
    pen.cell(RIGHT, 46, "2.0", size=52)
    pen.text(RIGHT + 66, 65, "the branch that ran", "small soft")
    pen.text(RIGHT, 100, 'logs["down"]', "code")
    pen.cell(RIGHT, 110, "", "gap", 52)
    pen.text(RIGHT + 66, 129, "no entry, shape [0]", "small soft")
    return pen.svg()


def while_loop() -> str:
    """Draw a loop of unknown length."""
    pen = _program(
        "A log in a while loop: capacity keeps a fixed number of entries and counts the rest, "
        "a reduction keeps one value.",
        176,
        'def body(x):\n    log({"x": x})\n    return x / 2\n'
        "lax.while_loop(\n    lambda x: x > 1, body, 32)",
    )
    pen.text(RIGHT, 36, "spool(f, capacity=3)", "code")
    pen.cells(RIGHT, 46, ["32", "16", "8"], 44)
    pen.cells(RIGHT + 144, 46, ["", ""], 44)
    pen.text(RIGHT, 92, 'logs.dropped["x"] is 2', "small soft")
    pen.text(RIGHT, 124, 'spool(f, reduce="mean")', "code")
    pen.cell(RIGHT, 134, "12.4", size=52)
    return pen.svg()


def vmap() -> str:
    """Lanes."""
    pen = Pen(
        WIDTH,
        218,
        "A log in a vmap: spool(vmap(f)) has entries first, vmap(spool(f)) lanes first.",
    )
    for x, code, rows, columns, names in (
        (16, "spool(vmap(f))(xs)", 3, 4, ("entries", "lanes")),
        (348, "vmap(spool(f))(xs)", 4, 3, ("lanes", "entries")),
    ):
        pen.text(x, 26, code, "code")
        for row in range(rows):
            for column in range(columns):
                pen.cell(x + 70 + 44 * column, 58 + 32 * row, "", "cell")
        pen.text(x + 70 + 22 * columns, 48, names[1], "small soft", "middle")
        pen.text(x + 62, 58 + 16 * rows + 3, names[0], "small soft", "end")
        pen.text(x + 70, 58 + 32 * rows + 18, f"shape [{names[0]}, {names[1]}, ...]", "small soft")
    return pen.svg()


def masked() -> str:
    """Lanes that did not log."""
    pen = _program(
        "A conditional log under vmap: lanes that did not run the branch are masked.",
        160,
        'def step(x, done):\n    log({"return": x},\n        where=done)\n\nvmap(step)(xs, dones)',
    )
    pen.text(RIGHT, 36, 'logs["return"]', "code")
    pen.cells(RIGHT, 46, ["3.0", "", "8.0", ""], 52)
    pen.text(RIGHT, 102, 'logs.mask["return"]', "code")
    for i, word in enumerate(["true", "false", "true", "false"]):
        pen.text(RIGHT + 26 + 56 * i, 122, word, "small soft", "middle")
    pen.text(RIGHT, 148, "statistics count only what was logged", "small soft")
    return pen.svg()


def grad() -> str:
    """Draw a gradient: the forward pass is logged once, the backward pass by log_cotangent."""
    pen = Pen(
        WIDTH,
        212,
        "Under grad the forward pass is logged once; log_cotangent logs what flows back.",
    )
    for x, name in ((30, "x"), (262, "h"), (494, "loss")):
        pen.box(x, 84, 100, 40)
        pen.text(x + 50, 109, name, "code", "middle")
    for x in (130, 362):
        pen.line([(x + 8, 95), (x + 124, 95)])
        pen.line([(x + 124, 114), (x + 8, 114)], "thin")
    pen.text(196, 84, "forward", "small soft", "middle")
    pen.text(196, 136, "backward", "small soft", "middle")
    pen.dot(312, 66)
    pen.text(326, 42, 'log({"h": h})', "code log")
    pen.text(326, 62, "one entry, as without grad", "small soft")
    pen.dot(312, 144)
    pen.text(326, 164, 'h = log_cotangent("dh", h)', "code log")
    pen.text(326, 184, "one entry, the gradient at h", "small soft")
    return pen.svg()


def remat() -> str:
    """Draw what is computed twice and logged once."""
    pen = Pen(
        WIDTH, 176, "Under checkpoint and grad the forward pass runs twice and is logged once."
    )
    pen.text(16, 26, "grad(checkpoint(f))", "code")
    for x, width, name in (
        (16, 170, "forward"),
        (214, 170, "forward again"),
        (412, 212, "backward"),
    ):
        pen.box(x, 62, width, 40)
        pen.text(x + width / 2, 87, name, "small", "middle")
    pen.line([(188, 82), (212, 82)])
    pen.line([(386, 82), (410, 82)])
    pen.dot(101, 48)
    pen.text(112, 53, "logged", "small log")
    pen.text(299, 53, "not logged", "small soft", "middle")
    pen.text(16, 136, 'logs["h"]', "code")
    pen.cell(110, 118, "0.8", size=52)
    pen.text(174, 137, "exactly one entry", "small soft")
    return pen.svg()


def shard_map() -> str:
    """One more axis for the mesh."""
    pen = Pen(
        WIDTH,
        196,
        "A log in a shard_map over four devices: one axis for the mesh, after the entries.",
    )
    for i in range(4):
        x = 16 + 76 * i
        pen.box(x, 40, 68, 62)
        pen.text(x + 34, 64, f"device {i}", "small", "middle")
        pen.dot(x + 34, 84)
        pen.line([(x + 34, 106), (x + 34, 136)], "thin")
        pen.cell(x + 8, 142, str(i + 1) + ".0", size=52)
    pen.text(16, 26, 'log({"loss": loss}) in shard_map over "data"', "code log")
    pen.text(RIGHT, 152, "shape [entries, 4, ...]", "small soft")
    pen.text(RIGHT, 172, "the value of each device", "small soft")
    return pen.svg()


TRANSFORMATIONS = {
    "jit": jit,
    "scan": scan,
    "cond": cond,
    "while-loop": while_loop,
    "vmap": vmap,
    "masked": masked,
    "grad": grad,
    "remat": remat,
    "shard-map": shard_map,
}

"""Draw `docs/console.svg`: the console while four seeds of one jitted program train.

    python tools/console_picture.py [FILE]

The program is real and the picture is taken after two thirds of it; only the terminal is replaced
by a recording one.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.text import Text

import sawlog
from sawlog.loggers import ConsoleLogger
from sawlog.sinks._console import _view

SEEDS, STEPS = 4, 60_000
TITLE, WIDTH, HEIGHT = "linear regression", 96, 24


def train(key: jax.Array, steps: jax.Array) -> jax.Array:
    """Fit a noisy linear model by gradient descent; return the last loss."""
    data, init = jax.random.split(key)
    x = jax.random.normal(data, (128, 8))
    y = x @ jnp.linspace(-1, 1, 8) + 0.1 * jax.random.normal(init, (128,))

    def step(w: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        picked = jax.random.randint(jax.random.fold_in(data, i), (16,), 0, 128)
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x[picked] @ w - y[picked]) ** 2))(w)
        rate = 1e-3 / (1 + i / 5_000)
        sawlog.log({"loss": loss, "grad/norm": jnp.linalg.norm(grad), "rate": rate}, step=i)
        sawlog.log({"weights": w}, step=i)
        return w - rate * grad, loss

    return jax.lax.scan(step, jax.random.normal(init, (8,)), steps)[1][-1]


def main(path: Path) -> None:
    """Run the program and write the picture."""
    with ConsoleLogger(TITLE, total=STEPS, file=io.StringIO()) as logger:

        def run(key: jax.Array) -> jax.Array:
            steps = jnp.arange(STEPS * 2 // 3)
            return logger.tap(train, logger.init(key), buffer=1_000)(key, steps)

        jax.jit(jax.vmap(run))(jax.vmap(jax.random.key)(jnp.arange(SEEDS)))
        jax.effects_barrier()
        lines = _view.table(logger.dashboard.snapshot, TITLE, WIDTH, HEIGHT)
    path.write_text(drawn(lines), encoding="utf-8")


def drawn(lines: list[Text]) -> str:
    """Return the lines as an SVG that loads nothing from elsewhere."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor"
    )
    console.print(Text("\n").join(lines))
    svg = console.export_svg(title="sawlog", unique_id="console")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/console.svg"))

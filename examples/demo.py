"""What sawlog does, told on small models in a minute or two: `make demo` runs this.

    python examples/demo.py

It is the command ``sawlog demo``. The parts of the story are short modules of ``sawlog.demo``: one
training function for several seeds in one ``jit``, whose logs stream, return and shrink; runs on
disk; a writer that is killed and resumes; the gradient of every example of a PyTorch model, wrong
labels, the examples behind a mistake; and a page about all of it.
"""

from __future__ import annotations

import sys

from sawlog.cli import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))

"""``{public-api} MODULE``: a table of all public names of a module, and the docstring of each.

An object that several modules offer is documented once, on the page of the first of ``MODULES``,
and linked from the others.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

#: The public modules. The first that offers an object is its home.
MODULES = (
    "sawlog",
    "sawlog.jax",
    "sawlog.loggers",
    "sawlog.torch",
    "sawlog.capture",
    "sawlog.huggingface",
    "sawlog.lightning",
    "sawlog.accelerate",
    "sawlog.influence",
    "sawlog.curvature",
    "sawlog.factored",
    "sawlog.store",
    "sawlog.sinks",
    "sawlog.records",
    "sawlog.inspect",
    "sawlog.report",
    "sawlog.example_data",
    "sawlog.testing",
    "sawlog.errors",
    "sawlog.logix",
    "sawlog.analysis",
    "sawlog.utils",
    "sawlog.cli",
)


def public_names(module: ModuleType) -> list[str]:
    """Return ``__all__``, or for a module without it the public names that it defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("__")]
    own = ((name, value) for name, value in vars(module).items() if not name.startswith("_"))
    return [name for name, value in own if getattr(value, "__module__", "") == module.__name__]


def home_of(module: str, name: str) -> str:
    """Return the full name under which the object of a module is documented."""
    value = getattr(importlib.import_module(module), name)
    if isinstance(value, ModuleType):
        return value.__name__
    if not callable(value):
        return f"{module}.{name}"
    for earlier in MODULES[: MODULES.index(module)]:
        home = importlib.import_module(earlier)
        for other in public_names(home):
            if getattr(home, other) is value:
                return f"{earlier}.{other}"
    return f"{module}.{name}"


def directive_for(value: Any) -> tuple[str, list[str]]:
    """Return the directive of autodoc for a value, and its options."""
    if inspect.isclass(value):
        if issubclass(value, BaseException):
            return "autoexception", [":show-inheritance:"]
        return "autoclass", [":members:", ":show-inheritance:"]
    return ("autofunction" if callable(value) else "autodata"), []


def lines_for(module_name: str) -> Iterator[str]:
    """Yield the reStructuredText of the page of a module."""
    module = importlib.import_module(module_name)
    here, elsewhere = [], []
    for name in public_names(module):
        home = home_of(module_name, name)
        (here if home == f"{module_name}.{name}" else elsewhere).append((name, home))
    yield from (".. autosummary::", "   :nosignatures:", "")
    yield from (f"   {home}" for _, home in here)
    yield ""
    if elsewhere:
        yield "Documented elsewhere, and offered here too:"
        yield ""
        for name, home in elsewhere:
            role = "mod" if home in MODULES or home == f"{module_name}.{name}" else "obj"
            yield f"- ``{module_name}.{name}`` is :py:{role}:`{home}`"
        yield ""
    for name, home in here:
        directive, options = directive_for(getattr(module, name))
        yield from (f".. {directive}:: {home}", *(f"   {option}" for option in options), "")


class PublicApi(SphinxDirective):
    """The directive ``{public-api} MODULE``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the generated text as a part of the page."""
        text = ["````{eval-rst}", *lines_for(self.arguments[0]), "````"]
        node = nodes.container()
        source = f"public-api {self.arguments[0]}"
        self.state.nested_parse(StringList(text, source), self.content_offset, node)
        return node.children

"""``{public-api} MODULE``: a table of all public names of a module, and the docstring of each.

An object that several modules offer is documented once, on the page of the first of ``MODULES``,
and linked from the others. The lines of the directive sort the names into groups::

    ```{public-api} sawlog.influence
    Methods: attribute trak tracin
    Results: Scores Ranking
    ```
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective

from tools.docs_site._public import MODULES

#: Names of ``sawlog`` that are there for programs of LogIX.
LOGIX = ("LogIX", "LogIXScheduler", "add_analysis", "add_lora", "initialize_from_log")

#: Public constants, which have no docstrings.
CONSTANTS = {
    "sawlog.curvature.Damping": "What ``damping=`` takes: a number, :class:`Relative`, "
    ":class:`Typical`, :class:`Sampled`, a dict of numbers by layer, or None for the default.",
    "sawlog.curvature.KINDS": "The names of all kinds of curvature.",
    "sawlog.testing.CASES": "The models of :class:`CaptureContract`: a function for each name.",
}


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
    if module == "sawlog" and name in LOGIX:
        return f"sawlog.logix.{name}"
    if not callable(value) or (module == "sawlog.logix" and name in LOGIX):
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
    if not callable(value):
        raise SphinxError(f"public-api: describe the constant {value!r:.80} in CONSTANTS")
    return "autofunction", []


def grouped(names: list[str], content: list[str]) -> dict[str, list[str]]:
    """Sort names into groups, as the lines of a directive say; the rest comes last."""
    groups: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, content)):
        title, _, listed = line.partition(":")
        groups[title] = listed.split()
    chosen = [name for group in groups.values() for name in group]
    if unknown := sorted(set(chosen) - set(names)):
        raise SphinxError(f"public-api: {', '.join(unknown)} is not documented here")
    rest = [name for name in names if name not in chosen]
    return {**groups, **({"More" if groups else "": rest} if rest else {})}


def lines_for(module_name: str, content: list[str]) -> Iterator[str]:
    """Yield the reStructuredText of the page of a module."""
    module = importlib.import_module(module_name)
    homes = {name: home_of(module_name, name) for name in public_names(module)}
    modules = [name for name in homes if isinstance(getattr(module, name), ModuleType)]
    own = [n for n, home in homes.items() if home == f"{module_name}.{n}" and n not in modules]
    elsewhere = [(name, home) for name, home in homes.items() if name not in own]
    groups = grouped(own, content)
    for title, names in groups.items():
        yield from ((f".. rubric:: {title}", "") if title else ())
        yield from (".. autosummary::", "   :nosignatures:", "")
        yield from (f"   ~{homes[n]}" for n in names if homes[n] not in CONSTANTS)
        yield ""
    if elsewhere:
        yield "Documented elsewhere, and offered here too:"
        yield ""
        for name, home in elsewhere:
            page = home.replace(".", "-")
            target = f":doc:`{page}`" if home in MODULES else f":py:obj:`{home}`"
            yield f"- ``{module_name}.{name}`` is {target}"
        yield ""
    for name in [name for names in groups.values() for name in names]:
        home = homes[name]
        if home in CONSTANTS:
            yield from (f".. py:data:: {home}", "", f"   {CONSTANTS[home]}", "")
            continue
        directive, options = directive_for(getattr(module, name))
        yield from (f".. {directive}:: {home}", *(f"   {option}" for option in options), "")


class PublicApi(SphinxDirective):
    """The directive ``{public-api} MODULE``."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Parse the generated text as a part of the page."""
        text = ["````{eval-rst}", *lines_for(self.arguments[0], list(self.content)), "````"]
        node = nodes.container()
        source = f"public-api {self.arguments[0]}"
        self.state.nested_parse(StringList(text, source), self.content_offset, node)
        return node.children

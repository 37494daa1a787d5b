"""Warn of selected names that a program does not log, with the nearest names as a hint."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sawlog._names import ByName, did_you_mean, matches
from sawlog.errors import UnmatchedNameWarning
from sawlog.jax import _compat
from sawlog.jax._core.primitive import PASSING_PRIMITIVES, log_p
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.user_frames import stack_level


class Unmatched:
    """Warns once for each program and name, however often the program is traced."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()

    def warn(self, closed: Any, chosen: Selection, **by_name: ByName) -> None:
        """Warn of names, tags and keys of options that match no log of a traced program."""
        for option, name, among in _unmatched(closed, chosen, by_name):
            if (option, name) not in self._warned:
                self._warned.add((option, name))
                _warn(option, name, among)


def _unmatched(
    closed: Any, chosen: Selection, by_name: Mapping[str, ByName]
) -> Iterator[tuple[str, str, set[str]]]:
    """Yield each name without a match: the option, the name, and the names of the program."""
    selected: dict[str, Iterable[str]] = {
        "argnames": chosen.argnames or (),
        "tags": chosen.tags or (),
    }
    selected |= {option: given.names for option, given in by_name.items()}
    if not any(selected.values()):
        return
    sites = list(dict.fromkeys(_sites(closed.jaxpr, set())))
    known = {key for site in sites for key in site.keys}
    for option, names in selected.items():
        among = {tag for site in sites for tag in site.tags} if option == "tags" else known
        for name in sorted(names):
            if not any(matches(name, each) for each in among):
                yield option, name, among


def warn_unmatched_keys(modes: Any, known: Iterable[str]) -> None:
    """Warn of the keys of ``logs.reduce({...})`` that match no key of the logs."""
    listed = list(known)
    for name in ByName.read(modes).names:
        if not any(matches(name, each) for each in listed):
            _warn("reduce", name, listed)


def _sites(jaxpr: Any, seen: set[int]) -> Iterator[Site]:
    """Yield all logs of a program, those in inner programs included."""
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    for eqn in jaxpr.eqns:
        if eqn.primitive is log_p or eqn.primitive in PASSING_PRIMITIVES:
            yield eqn.params["site"]
        for inner in _compat.subjaxprs(eqn.params):
            yield from _sites(getattr(inner, "jaxpr", inner), seen)


def _warn(option: str, name: str, known: Iterable[str]) -> None:
    what = "tag" if option == "tags" else "name"
    warnings.warn(
        f"`{option}` names {name!r}, and no log of this program has such a {what}. "
        + did_you_mean(name, known),
        UnmatchedNameWarning,
        stacklevel=stack_level(),
    )

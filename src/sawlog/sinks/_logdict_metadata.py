"""The metadata of a logdict in the attributes of a series: its key, and whether it has values.

``sawlog.jax`` writes a pytree as one series for each leaf, ``params['w']``, and counts next to the
values, ``loss@dropped``; ``attrs["logdict"]`` describes that. Sinks that select or rename series
use it, so that the result can still be loaded. A series without it has values under its own name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog import _names
from sawlog.errors import LogMismatchError
from sawlog.records import Entries, Records

_SECTION = "logdict"
_STEP = re.compile(  # of the path to a leaf, as jax.tree_util.keystr writes it
    r"""\[(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
    r"""|\[(?:<flat index )?(?P<item>[^\]>]*)>?\]"""
    r"""|\.(?P<field>\w+)"""
)


def is_value(entries: Entries) -> bool:
    """Return whether a series has logged values, not counts about another series."""
    return bool(_notes_of(entries).get("role", "value") == "value")


def is_news(entries: Entries) -> bool:
    """Return whether to show a series: values, and counts that are not all zero."""
    return is_value(entries) or bool(np.any(entries.values))


def key_of(name: str, entries: Entries) -> str:
    """Return the key under which a series was logged."""
    key = _notes_of(entries).get("key")
    return key if key and isinstance(key, str) else name


def _notes_of(entries: Entries) -> Mapping[str, Any]:
    """Return the notes of a series; none if another program wrote something else there."""
    notes = entries.attrs.get(_SECTION)
    return notes if isinstance(notes, Mapping) else {}


def matches(name: str, entries: Entries, pattern: str) -> bool:
    """Return whether a pattern matches a series by its name, its key, or its displayed name."""
    several = {name, key_of(name, entries), shown_name(name, entries)}
    return any(_names.matches(pattern, each) for each in several)


def shown_name(name: str, entries: Entries) -> str:
    """Return the displayed name of a series: ``loss/policy`` for ``loss['policy']``.

    >>> attrs = {"logdict": {"key": "net"}}
    >>> shown_name("net['dense'][0].bias", Entries(np.ones(1), attrs=attrs))
    'net/dense/0/bias'
    """
    key = key_of(name, entries)
    if name == key or not name.startswith(key):
        return name
    parts, at = [key], len(key)
    while at < len(name):
        step = _STEP.match(name, at)
        if step is None:
            return name
        text = step["text"]
        parts.append(step["item"] or step["field"] or "" if text is None else _unquoted(text))
        at = step.end()
    return "/".join(parts)


def _unquoted(text: str) -> str:
    return str(ast.literal_eval(text))


class DisplayedNames:
    """The displayed names of one destination, and the series of each."""

    def __init__(self) -> None:
        self._series: dict[str, str] = {}

    def records(self, records: Mapping[str, Entries]) -> Records:
        """Rename records to their displayed names.

        Raises:
            LogMismatchError: two series would have the same name.
        """
        return Records({self._name(name, each): each for name, each in records.items()})

    def _name(self, name: str, entries: Entries) -> str:
        shown = shown_name(name, entries)
        other = self._series.setdefault(shown, name)
        if other != name:
            raise LogMismatchError(
                f"{name!r} and {other!r} would both be called {shown!r} here. Nothing of the call "
                "was taken. Hint: rename one of them."
            )
        return shown


def prefixed(attrs: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """Return the attributes of a series after a prefix was added to its name."""
    notes = attrs.get(_SECTION)
    if not notes or not isinstance(notes, Mapping):
        return attrs
    renamed = dict(notes)
    if isinstance(renamed.get("key"), str) and renamed["key"]:
        renamed["key"] = prefix + renamed["key"]
    if isinstance(renamed.get("types"), Mapping):
        renamed["types"] = {prefix + key: about for key, about in renamed["types"].items()}
    return {**attrs, _SECTION: renamed}

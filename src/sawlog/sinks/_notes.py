"""What the notes of a logdict say about a series: which key it is of, and whether it has values.

``sawlog.jax`` writes a pytree as one series a leaf, ``params['w']``, and counts beside the values,
``loss@dropped``; ``attrs["logdict"]`` says so. Sinks that choose or rename have to know, so that
what they let through can still be loaded. Series without such notes are values under their name.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from sawlog.records import Entries

_SECTION = "logdict"


def is_value(entries: Entries) -> bool:
    """Whether these are logged values, not counts that go with others."""
    return bool(entries.attrs.get(_SECTION, {}).get("role", "value") == "value")


def is_news(entries: Entries) -> bool:
    """Whether people want to see these: values, and counts of entries left out, if any were."""
    return is_value(entries) or bool(np.any(entries.values))


def matches(name: str, entries: Entries, pattern: str) -> bool:
    """Whether a pattern means this series, by its own name or by that of its key."""
    key = entries.attrs.get(_SECTION, {}).get("key") or name
    return any(each == pattern or fnmatchcase(each, pattern) for each in (name, key))


def prefixed(attrs: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """The notes of a series that gets a prefix."""
    notes = attrs.get(_SECTION)
    if not notes:
        return attrs
    renamed = dict(notes)
    if renamed.get("key"):
        renamed["key"] = prefix + renamed["key"]
    if renamed.get("types"):
        renamed["types"] = {prefix + key: about for key, about in renamed["types"].items()}
    return {**attrs, _SECTION: renamed}

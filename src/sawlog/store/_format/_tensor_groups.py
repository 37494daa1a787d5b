"""Groups: many series of one type, described in the header as one tensor and a list of names.

See FORMAT.md, section 4. The header of a segment with a hundred thousand names then has a list of
names, instead of a description of each tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sawlog.store._format import _parse
from sawlog.store._format._chunks import step_name
from sawlog.store._format._empty_items import Typed

PREFIX = "sawlog.group/"
_MANY = 1000  # series; fewer are described one by one


class TensorGroup(NamedTuple):
    """The tensors that one tensor represents: each is called ``prefix`` plus one of ``names``."""

    names: tuple[str, ...]
    prefix: str


def parse_groups(value: Any) -> dict[str, TensorGroup]:
    """Parse the groups of a segment, by the name of their tensor.

    Raises:
        Malformed: the value is invalid.
    """
    said = _parse.mapping(value, "'groups'")
    groups = {name: _parse.mapping(each, "a group") for name, each in said.items()}
    lists = {
        name: _names(each["names"])
        for name, each in groups.items()
        if type(each.get("names")) is list
    }
    found: dict[str, TensorGroup] = {}
    for name, each in groups.items():
        if not name.startswith(PREFIX):
            _parse.fail(f"{_parse.shown(name)} is not the name of a group")
        own = name if name in lists else _parse.text(each.get("names"), "'names' of a group")
        if own not in lists:
            _parse.fail(f"the group {_parse.shown(own)} is missing or has no list of names")
        found[name] = TensorGroup(lists[own], _parse.text(each.get("prefix", ""), "'prefix'"))
    return found


def _names(value: Any) -> tuple[str, ...]:
    names = _parse.texts(value, "'names' of a group")
    if not names or "" in names:
        _parse.fail("a group has no names")
    return names


def grouped(
    description: dict[str, Any], tensors: Mapping[str, Typed]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Describe series of one type as groups, if there are at least ``_MANY`` of them.

    Returns:
        The description, and the tensors of each group in order.
    """
    if len(description["chunks"]) < _MANY:
        return description, {}
    alike: dict[tuple[Any, ...], list[str]] = {}
    for chunk in description["chunks"]:
        if (key := _kind(chunk, tensors)) is not None:
            alike.setdefault(key, []).append(chunk["series"])
    alike = {key: names for key, names in alike.items() if len(names) >= _MANY}
    if not alike:
        return description, {}
    groups: dict[str, dict[str, Any]] = {}
    members: dict[str, list[str]] = {}
    chunks: list[dict[str, Any]] = []
    for (rows, steps, *_), names in alike.items():
        first = f"{PREFIX}{len(groups)}"
        groups[first], members[first] = {"names": names}, names
        for axis in steps:
            group = f"{PREFIX}{len(groups)}"
            groups[group] = {"names": first, "prefix": step_name(axis, "")}
            members[group] = [step_name(axis, name) for name in names]
        chunks.append({"group": first, "rows": rows, "steps": list(steps)})
    done = {name for names in alike.values() for name in names}
    others = [chunk for chunk in description["chunks"] if chunk.get("series") not in done]
    return {**description, "version": 3, "chunks": chunks + others, "groups": groups}, members


def _kind(chunk: dict[str, Any], tensors: Mapping[str, Typed]) -> tuple[Any, ...] | None:
    """Return what the series of a group share, or None for one that cannot be in a group."""
    if "series" not in chunk or len(chunk) != 3:  # it has a mask, or attrs
        return None
    name, steps = chunk["series"], tuple(chunk["steps"])
    parts = [tensors[name], *[tensors[step_name(axis, name)] for axis in steps]]
    shapes = [part.shape for part in parts]
    if any(0 in shape for shape in shapes) or not all(part.dtype.itemsize for part in parts):
        return None
    return (chunk["rows"], steps, *shapes, *[part.dtype for part in parts])

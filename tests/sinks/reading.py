"""What arrived, read with nothing of sawlog where that is possible."""

import csv
import json
import re

import numpy as np

ODD = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


def from_records(records):
    arrived = {}
    for name, entries in records.items():
        there = np.ones(len(entries), bool) if entries.mask is None else entries.mask
        there = there.reshape(len(there), int(np.prod(there.shape[1:]))).any(axis=1)
        arrived[name] = [
            ({axis: steps[i].tolist() for axis, steps in entries.steps.items()}, entries.values[i])
            for i in range(len(entries))
            if there[i]
        ]
    return arrived


def from_jsonl(path):
    arrived = {}
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line, parse_constant=lambda text: 1 / 0)
        name, value = row.pop("name"), row.pop("value")
        arrived.setdefault(name, []).append((row, _numbers(value)))
    return arrived


def _numbers(value):
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return ODD.get(value, value) if isinstance(value, str) else value


def from_csv(path):
    """Rows in the order they are in, items put together again."""
    with open(path, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file) if path.stat().st_size else [[]]
    found = {}
    for label, *steps, value in rows:
        at = {a: json.loads(s) for a, s in zip(header[1:-1], steps, strict=True) if s}
        name, _, index = label.partition("[")
        found.setdefault((name, tuple(at.items())), []).append((index.rstrip("]"), float(value)))
    arrived = {}
    for (name, at), items in found.items():
        arrived.setdefault(name, []).append((dict(at), _together(items)))
    return arrived


def _together(items):
    if items[0][0] == "":
        assert len(items) == 1
        return items[0][1]
    places = [tuple(map(int, re.findall(r"\d+", index))) for index, _ in items]
    array = np.full(np.max(places, axis=0) + 1, np.nan)
    for place, (_, value) in zip(places, items, strict=True):
        array[place] = value
    return array

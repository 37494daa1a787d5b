"""A reader of stores written from FORMAT.md alone, in json, struct and numpy.

It is slow and simple on purpose: what it returns is what the page says, and a test compares that
with what `sawlog.store` wrote. Types that numpy does not have come back as their bytes: bfloat16
as uint16, float8 as uint8, others as uint8 with one more axis. The numbers in the comments are
the sections of the page.
"""

import json
import os
import re
import struct
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from .plain_dtypes import dtype_of

SEGMENT = re.compile(r"([a-z0-9]{1,32})-([0-9]{8,})\.safetensors")
SCHEMA = re.compile(r"[0-9]{8}\.json")
MERGED = re.compile(r"00000001-([0-9]{8,})\.json")
CHECKSUM = re.compile(rb'"checksum"\s*:\s*"([0-9a-f]{16})"\s*}\s*')
WRITER = re.compile(r"([a-z0-9]{1,32})\.json")

SAFETENSORS = {
    "BOOL": "?",
    **{f"U{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"I{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
    "C64": "<c8",
    "BF16": "<u2",
    "F8_E4M3": "<u1",
    "F8_E5M2": "<u1",
}


class FormatError(Exception):
    pass


def need(true, file, what):
    if not true:
        raise FormatError(f"{Path(file).name}: {what}")


# ---- 1.5: files of JSON


def read_json(file, hash=None):
    """The object in a file whose last key is its checksum."""
    text = Path(file).read_bytes()
    found = list(CHECKSUM.finditer(text))
    need(found and found[-1].end() == len(text), file, "does not end in a checksum")
    begin, end = found[-1].span(1)
    if hash is not None:
        expected = f"{hash(text[:begin] + b'0' * 16 + text[end:]):016x}"
        need(text[begin:end] == expected.encode(), file, "checksum differs")
    return json.loads(text)


# ---- 4, 6: one segment


@dataclass(frozen=True)
class Tensor:
    dtype: str  # of safetensors
    shape: tuple
    begin: int  # from the start of the file
    end: int


class Segment:
    """One file: `description`, and `tensor(name)`."""

    def __init__(self, file, hash=None):
        self.file, self.hash = Path(file), hash
        self.bytes = Path(file).read_bytes()
        need(len(self.bytes) >= 8, file, "shorter than the length of its header")
        (length,) = struct.unpack_from("<Q", self.bytes)
        self.start = length + 8
        need(self.start % 64 == 0, file, "header not padded to 64 bytes")
        need(self.start <= len(self.bytes), file, "cut in its header")
        header = json.loads(self.bytes[8 : self.start])
        self.description = json.loads(header.pop("__metadata__")["sawlog"])
        self.tensors = self._tensors(header)
        self._expand_groups()
        match = SEGMENT.fullmatch(self.file.name)
        need(self.description["version"] in (1, 2, 3), file, "version")
        need(self.description["writer"] == match[1], file, "not the writer of the name")
        need(self.description["sequence"] == int(match[2]), file, "not the sequence of the name")
        if hash is not None:
            self.check()

    def _tensors(self, header):
        found = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = (self.start + offset for offset in entry["data_offsets"])
            found[name] = Tensor(entry["dtype"], tuple(entry["shape"]), begin, end)
        place = self.start
        for name, tensor in found.items():
            itemsize = np.dtype(SAFETENSORS[tensor.dtype]).itemsize
            size = itemsize * int(np.prod(tensor.shape, dtype=np.int64))
            need(tensor.begin == place, self.file, f"gap before {name}")
            need(tensor.end - tensor.begin == size, self.file, f"size of {name}")
            need(tensor.begin % itemsize == 0, self.file, f"{name} is not aligned")
            place = tensor.end
        need(place == len(self.bytes), self.file, f"{len(self.bytes)} bytes, expected {place}")
        need(list(found)[-1] == "sawlog.checksums", self.file, "checksums are not the last tensor")
        return found

    def _expand_groups(self):
        """Tensors and chunks that are described together (4, groups)."""
        if self.description["version"] < 3:
            return
        said, cuts = self.description["groups"], self.description["checksums"]
        names = {g: e["names"] for g, e in said.items() if isinstance(e["names"], list)}
        found = {}
        for group, whole in self.tensors.items():
            if group not in said:
                found[group] = whole
                continue
            own = names[said[group]["names"]] if group not in names else names[group]
            need(len(own) == whole.shape[0] == len(set(own)), self.file, f"names of {group}")
            need(whole.end > whole.begin, self.file, f"{group} is empty")
            size = (whole.end - whole.begin) // len(own)
            for number, name in enumerate(own):
                full, begin = said[group].get("prefix", "") + name, whole.begin + number * size
                need(full not in found, self.file, f"{full} twice")
                found[full] = Tensor(whole.dtype, whole.shape[1:], begin, begin + size)
                cuts[full] = cuts[group]
                if group in self.description["types"]:
                    type = self.description["types"][group]
                    self.description["types"][full] = {**type, "shape": type["shape"][1:]}
        self.tensors = found
        chunks = []
        for chunk in self.description["chunks"]:
            group = chunk.pop("group", None)
            need(group is None or not said[group].get("prefix"), self.file, "prefix of a chunk")
            many = [chunk] if group is None else [{**chunk, "series": n} for n in names[group]]
            chunks += many
        self.description["chunks"] = chunks

    def stored(self, name):
        """A tensor as safetensors has it."""
        tensor = self.tensors[name]
        data = self.bytes[tensor.begin : tensor.end]
        return np.frombuffer(data, SAFETENSORS[tensor.dtype]).reshape(tensor.shape)

    def tensor(self, name):
        stored = self.stored(name)
        type = self.description["types"].get(name)
        if type is None:
            return stored
        need(self.tensors[name].dtype == "U8", self.file, f"{name} has a type and is not U8")
        need(type.get("codec") is None, self.file, f"{name} has a codec")
        dtype = dtype_of(type["dtype"])
        shape = tuple(type["shape"])
        need(stored.shape[:-1] == shape, self.file, f"shape of {name}")
        if dtype is None:
            return stored
        need(stored.shape[-1] == dtype.itemsize, self.file, f"item size of {name}")
        return np.frombuffer(stored.tobytes(), dtype).reshape(shape)

    def check(self):
        """Every number of `sawlog.checksums`."""
        *numbers, own = self.stored("sawlog.checksums").view("<u8").tolist()
        place = self.tensors["sawlog.checksums"]
        need(self.hash(self.bytes[place.begin : place.end - 8]) == own, self.file, "checksums")
        expected = [self.hash(self.bytes[: self.start])]
        for name in list(self.tensors)[:-1]:
            expected += self._checksums(name)
        need(numbers == expected, self.file, "a checksum differs")

    def _checksums(self, name):
        tensor = self.tensors[name]
        if tensor.begin == tensor.end:
            return []
        block, span = self.description["checksums"][name]
        need(span % block == 0, self.file, f"span and block of {name}")
        row = (tensor.end - tensor.begin) // tensor.shape[0]
        return [
            self.hash(self.bytes[begin : min(begin + rows * row, tensor.end)])
            for rows in (span, block)
            for begin in range(tensor.begin, tensor.end, rows * row)
        ]

    def step(self, axis, series):
        """The tensor of a step axis: version 1 wrote the axis as it is."""
        if self.description["version"] > 1:
            axis = axis.replace("%", "%25").replace("/", "%2F")
        return f"sawlog.step/{axis}/{series}"

    def ids(self, chunk):
        first = chunk["table"][0]
        if chunk["ids"] == "int":
            return self.tensor(f"sawlog.ids/{first}").tolist()
        text = self.tensor(f"sawlog.ids.text/{first}").tobytes()
        ends = self.tensor(f"sawlog.ids.ends/{first}").tolist()
        parts = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        if self.hash is not None:
            hashes = self.tensor(f"sawlog.ids.hash/{first}").tolist()
            need(hashes == [self.hash(part) for part in parts], self.file, "hash of an id")
        return [part.decode() for part in parts]


# ---- 2, 3, 5: the store


@dataclass
class Series:
    values: list = field(default_factory=list)
    steps: dict = field(default_factory=dict)
    masks: list = field(default_factory=list)
    attrs: list = field(default_factory=list)


class PlainStore:
    """A store as FORMAT.md describes it. With a hash function every checksum is checked."""

    def __init__(self, path, hash=None):
        self.path, self.hash = Path(path), hash
        self.info = read_json(self.path / "store.json", hash)
        need(self.info["format"] == "sawlog-store", "store.json", "format")
        need(self.info["version"] in (1, 2), "store.json", "version")
        self.schema = self._schema()
        self.all = {}
        for name in os.listdir(self.path / "segments"):
            if match := SEGMENT.fullmatch(name):
                segment = Segment(self.path / "segments" / name, hash)
                need(segment.description["store"] == self.info["id"], name, "of another store")
                self.all[match[1], int(match[2])] = segment

    def _schema(self):
        listed = os.listdir(self.path / "schema")
        merged = max([int(m[1]) for n in listed if (m := MERGED.fullmatch(n))], default=0)
        names = sorted(n for n in listed if SCHEMA.fullmatch(n) and int(n[:-5]) > merged)
        expected = [f"{merged + n + 1:08}.json" for n in range(len(names))]
        need(names == expected, "schema", "gap in numbers")
        names = [f"00000001-{merged:08}.json"] * bool(merged) + names
        return [
            each
            for name in names
            for log in read_json(self.path / "schema" / name, self.hash)["add"]
            for each in self._one_by_one(log)
        ]

    @staticmethod
    def _one_by_one(log):
        """Series that were declared together."""
        if log["kind"] != "many":
            return [log]
        alike = {"dtype": log["dtype"], "shape": log["shape"]}
        return [
            {"kind": "series", "column": {"name": name, **alike}, "steps": log["steps"]}
            for name in log["names"]
        ]

    @cached_property
    def columns(self):
        """name -> column, of everything declared."""
        found = {}
        for log in self.schema:
            for column in log["columns"] if log["kind"] == "table" else [log["column"]]:
                need(column["name"] not in found, "schema", f"{column['name']} twice")
                found[column["name"]] = column
        return found

    @cached_property
    def replaced(self):
        return {
            (writer, sequence)
            for segment in self.all.values()
            for writer, ranges in segment.description.get("replaces", {}).items()
            for first, last in ranges
            for sequence in range(first, last + 1)
        }

    @cached_property
    def segments(self):
        """Those that count, in order (5.1)."""
        counting = [segment for key, segment in self.all.items() if key not in self.replaced]
        return sorted(counting, key=lambda segment: segment.description["order"])

    @cached_property
    def missing(self):
        """(writer, sequence) of segments that should be there (5.2)."""
        last = {}
        for writer, sequence in [*self.all, *self.replaced, *self.published.items()]:
            last[writer] = max(last.get(writer, 0), sequence)
        return [
            (writer, sequence)
            for writer, end in sorted(last.items())
            for sequence in range(1, end + 1)
            if (writer, sequence) not in self.all and (writer, sequence) not in self.replaced
        ]

    @cached_property
    def published(self):
        found = {}
        for name in os.listdir(self.path / "writers"):
            if match := WRITER.fullmatch(name):
                try:
                    found[match[1]] = int(
                        json.loads((self.path / "writers" / name).read_bytes())["published"]
                    )
                except (ValueError, KeyError, TypeError):
                    continue
        return found

    def chunks(self, name):
        """(segment, chunk) of every chunk with this name, in order."""
        for segment in self.segments:
            found = []
            for chunk in segment.description["chunks"]:
                need(("table" in chunk) != ("series" in chunk), segment.file, "kind of a chunk")
                if name in chunk.get("table", ()) or name == chunk.get("series"):
                    found.append((segment, chunk))
            need(len(found) <= 1, segment.file, f"{name} has several chunks")
            yield from found

    def ids(self, name):
        """All ids as written, duplicates included."""
        return [id for segment, chunk in self.chunks(name) for id in segment.ids(chunk)]

    def rows(self, name, duplicates=None):
        """id -> row, of those that count (5.4)."""
        policy = duplicates or self.info["config"]["duplicates"]
        found = {}
        for segment, chunk in self.chunks(name):
            ids, values = segment.ids(chunk), self._values(segment, chunk, name)
            for id, value in zip(ids, values, strict=True):
                need(policy != "error" or id not in found, segment.file, f"{id!r} twice")
                if policy != "first" or id not in found:
                    found[id] = value
        return found

    def series(self, name):
        """values, {axis: steps}, mask or None, and the note of every entry."""
        all = Series()
        for segment, chunk in self.chunks(name):
            rows = chunk["rows"]
            all.values.append(self._values(segment, chunk, name))
            for axis in chunk["steps"]:
                steps = segment.tensor(segment.step(axis, name))
                need(len(steps) == rows, segment.file, f"steps of {name}")
                all.steps.setdefault(axis, []).append(steps)
            masked = chunk.get("mask", False)
            all.masks.append(segment.tensor(f"sawlog.mask/{name}") if masked else rows)
            runs = chunk.get("attrs", [[rows, {}]])
            all.attrs += [note for count, note in runs for _ in range(count)]
        steps = {axis: join(parts) for axis, parts in all.steps.items()}
        return join(all.values), steps, join_masks(all.masks), all.attrs

    def _values(self, segment, chunk, name):
        values = segment.tensor(name)
        column = self.columns[name]
        raw = dtype_of(column["dtype"]) is None and segment.tensors[name].dtype == "U8"
        shape = values.shape[:-1] if raw and name in segment.description["types"] else values.shape
        need(shape == (chunk["rows"], *column["shape"]), segment.file, f"shape of {name}")
        return values


def join(parts):
    """np.concatenate, which would drop the room between the fields of a structured type."""
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    place = 0
    for part in parts:
        whole[place : place + len(part)] = part
        place += len(part)
    return whole


def join_masks(masks):
    """Masks of all chunks; where a chunk has none, everything was logged."""
    shapes = [mask.shape[1:] for mask in masks if not isinstance(mask, int)]
    if not shapes:
        return None
    whole = [np.ones((m, *shapes[0]), bool) if isinstance(m, int) else m for m in masks]
    return join(whole)

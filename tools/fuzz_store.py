"""Feed the store changed files for a while: `make fuzz SECONDS=600`.

Every round takes a sound store, changes one of its files somehow, with right checksums where that
makes it past the first look, and asks every question of `tests/store/hostile_stores.py`. Anything
but an answer or an error of sawlog is a finding: it is printed with the seed that makes it again.

Where atheris is installed (`pip install atheris`), it chooses the bytes, guided by coverage;
otherwise they are random.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

try:
    import atheris  # type: ignore[import-not-found]
except ImportError:
    atheris = None
with atheris.instrument_imports(include=["sawlog"]) if atheris else contextlib.nullcontext():
    from tests.store.forge import Forged, sealed
    from tests.store.hostile_stores import ask_everything, fill, segment_of
    from tests.store.test_stranger_files import changed, places_of

KINDS = ("segment", "segment bytes", "data", "store.json", "schema", "writers", "text")
LEAVES: tuple[Any, ...] = (None, True, False, -1, 0, 1, 2, 2**31, 2**63, 10**30, 1.5, "", "x", "/")


class Source:
    """Choices, from a random generator or from the bytes that a fuzzer gives."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, below: int) -> int:
        """Return a number from 0 to ``below`` - 1."""
        part = self._data[self._at : self._at + 4]
        self._at += 4
        return int.from_bytes(part, "little") % below if below else 0

    def value(self, depth: int = 0) -> Any:
        """Something that JSON can hold."""
        kind = self.number(6 if depth < 4 else 3)
        if kind < 2:
            return LEAVES[self.number(len(LEAVES))]
        if kind == 2:
            return self.number(1 << 32) - (1 << 31)
        if kind == 3:
            return "".join(chr(self.number(0x300)) for _ in range(self.number(6)))
        if kind == 4:
            return [self.value(depth + 1) for _ in range(self.number(4))]
        return {str(self.number(9)): self.value(depth + 1) for _ in range(self.number(3))}


def change(folder: Path, source: Source) -> str:
    """Change one file of a store; returns what was done."""
    kind = KINDS[source.number(len(KINDS))]
    if kind == "segment":
        return _change_segment(segment_of(folder), source)
    if kind in ("segment bytes", "data"):
        file = segment_of(folder)
        forged = Forged.of(file)
        data = bytearray(forged.data if kind == "data" else file.read_bytes())
        for _ in range(1 + source.number(8)):
            data[source.number(len(data))] = source.number(256)
        if kind == "data":
            forged.data = bytes(data)
        file.write_bytes(forged.bytes() if kind == "data" else data)
        return kind
    if kind == "text":
        file = segment_of(folder)
        text = bytearray(json.dumps({"__metadata__": {"sawlog": "{}"}}).encode())
        for _ in range(source.number(20)):
            text[source.number(len(text))] = source.number(128)
        file.write_bytes(Forged.of(file).bytes(text.decode()))
        return kind
    file = folder / kind if kind == "store.json" else sorted((folder / kind).iterdir())[0]
    said = json.loads(file.read_bytes())
    said.pop("checksum", None)
    for _ in range(1 + source.number(3)):
        places = places_of(said)
        said = changed(said, places[source.number(len(places))], source.value())
        if not isinstance(said, dict) or not places_of(said):
            break
    file.write_bytes(json.dumps(said).encode() if kind == "writers" else sealed(said))
    return kind


def _change_segment(file: Path, source: Source) -> str:
    forged = Forged.of(file)
    both = {"said": forged.said, "document": forged.document}
    for _ in range(1 + source.number(3)):
        places = [place for place in places_of(both) if len(place) > 1]
        if not places:
            break
        both = changed(both, places[source.number(len(places))], source.value())
    forged.said, forged.document = both["said"], both["document"]
    file.write_bytes(forged.bytes())
    return "segment"


def one(sound: Path, folder: Path, data: bytes) -> None:
    """One round."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    change(folder, Source(data))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ask_everything(folder)


def with_random(sound: Path, folder: Path, seconds: float, seed: int) -> int:
    """Random rounds until the time is over; returns how many findings there were."""
    deadline, rounds, findings = time.monotonic() + seconds, 0, 0
    while time.monotonic() < deadline:
        data = random.Random(seed).randbytes(256)
        try:
            one(sound, folder, data)
        except Exception:
            findings += 1
            print(f"--seed {seed}:\n{traceback.format_exc()}", flush=True)
        seed, rounds = seed + 1, rounds + 1
    print(f"{rounds} rounds, {findings} findings; the next seed is {seed}")
    return findings


def with_atheris(sound: Path, folder: Path, seconds: float) -> None:
    """Run rounds that coverage guides; ends the process."""
    atheris.Setup(
        [sys.argv[0], f"-max_total_time={int(seconds)}", "-max_len=256", "-len_control=0"],
        lambda data: one(sound, folder, data),
    )
    atheris.Fuzz()


def main() -> None:
    """Fuzz for a while."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--once", action="store_true", help="only that round")
    parser.add_argument("--random", action="store_true", help="even where atheris is installed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sawlog-fuzz-") as name:
        sound, folder = fill(Path(name) / "sound"), Path(name) / "store"
        if args.once:
            one(sound, folder, random.Random(args.seed).randbytes(256))
            return
        if atheris and not args.random:
            with_atheris(sound, folder, args.seconds)
        sys.exit(1 if with_random(sound, folder, args.seconds, args.seed) else 0)


if __name__ == "__main__":
    main()

"""The store against a raw file and a memory map, and against other formats, in one run.

1 GB in batches of 4 MB on one disk: append, read all of it, gather 10,000 random rows, and find
10,000 ids among a million. Then how opening, showing and compacting grow with the number of
segments, flushes and names. Run with --quick for a quarter of that.
"""

from __future__ import annotations

import argparse
import functools
import mmap
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from _store_peers import PEERS, Peer, Raw, Sawlog
from _store_scale import scale
from _timing import Contestant, Row, compare, report, seconds_of

import sawlog.store

ROWS, WIDTH = 1024, 1024  # of a batch of float32: 4 MB


def _memory_of(raw: Peer) -> int:
    return raw.batch.nbytes * raw.batches * 5 // 4  # of the files, and of buffers


def warm(nbytes: int) -> None:
    """Use and free so much memory, so that both find the same.

    A virtual machine gives free memory back to its host, page by page as it sees fit. The first
    write to a page that is gone takes ten times as long, and a file whose pages are not neighbours
    in memory takes longer to map. Without this, who comes second pays for it.
    """
    with mmap.mmap(-1, nbytes) as memory:
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


def appending(raw: Peer, own: Peer, rounds: int) -> list[Row]:
    """The ratio of the medians: some runs are slow, whoever's they are, so pairs say little."""
    needed = _memory_of(raw)
    times: dict[str, list[float]] = {raw.name: [], own.name: []}
    for turn in range(-1, rounds):
        for peer in (raw, own) if turn % 2 else (own, raw):
            for each in (raw, own):  # so that both find the same free memory for the page cache
                each.fresh()
            warm(needed)
            seconds = seconds_of(peer.append)
            if turn >= 0:  # the first round finds the memory cold
                times[peer.name].append(seconds)
    for peer in (raw, own):
        peer.fresh()
        warm(needed)
        peer.append()
    base, mine = (np.quantile(times[peer.name], [0.5, 0.25, 0.75]) for peer in (raw, own))
    ratio, low, high = base / mine
    who = f"{own.name} / raw file"
    edges = sorted([float(low), float(high)])
    return [Row("append", who, float(ratio), *edges, float(mine[0]), 0.8, True)]


def _row(what: str, peer: Peer, pairs: list[tuple[float, float]]) -> Row:
    ratios = sorted(ratio for ratio, _ in pairs)
    tenth = len(ratios) // 10
    seconds = float(np.median([seconds for _, seconds in pairs]))
    middle = float(np.median(ratios))
    who = f"{peer.name} / raw file"
    return Row(what, who, middle, ratios[tenth], ratios[-1 - tenth], seconds, None, True)


def reading(raw: Peer, own: Peer, rounds: int) -> list[Row]:
    rows = np.random.default_rng(1).integers(0, raw.rows, 10_000)
    assert np.array_equal(raw.gather(rows), own.gather(rows))
    assert np.isclose(raw.scan(), own.scan(), rtol=1e-5)
    scans = [Contestant("raw memory map", raw.scan), Contestant(own.name, own.scan)]
    gathers = [
        Contestant("raw memory map", lambda: raw.gather(rows)),
        Contestant(own.name, lambda: own.gather(rows)),
    ]
    reader = sawlog.store.open(own.folder / "store")
    reader.gather(rows)
    again = Contestant(f"{own.name}, open", lambda: reader.gather(rows))
    return [
        *compare("scan", scans, rounds=rounds, limits={own.name: 0.9}, speed=True),
        *compare(
            "gather 10,000 rows",
            [*gathers, again],
            rounds=rounds,
            limits={own.name: 0.5, again.name: 0.5},
            speed=True,
        ),
    ]


def finding(folder: Path, rounds: int) -> list[Row]:
    """Seconds, not ratios: the mark is 10 ms."""
    out = []
    for kind in ("int", "str"):
        path = folder / f"ids-{kind}"
        numbers = np.random.default_rng(2).permutation(1_000_000)
        ids = numbers if kind == "int" else [f"example-{n}" for n in numbers]
        with sawlog.store.create(path) as writer:
            for start in range(0, 1_000_000, 100_000):
                part = slice(start, start + 100_000)
                writer.append(ids[part], {"x": np.zeros((100_000, 1), np.int8)})
        reader = sawlog.store.open(path)
        some = [ids[i] for i in np.random.default_rng(3).integers(0, 1_000_000, 10_000)]
        asked = np.array(some) if kind == "int" else some
        reader.gather(asked)
        call = functools.partial(reader.gather, asked)
        times = sorted(seconds_of(call) for _ in range(rounds))
        middle = times[len(times) // 2]
        who = f"10,000 of 1M {kind} ids, ms"
        row = Row("find", who, middle * 1e3, times[0] * 1e3, times[-1] * 1e3, middle, 10.0)
        out.append(row)
    return out


def peers(folder: Path, raw: Peer, rounds: int) -> list[Row]:
    rows = np.random.default_rng(1).integers(0, raw.rows, 10_000)
    needed, out = _memory_of(raw), []
    for kind in PEERS:
        if not kind.is_here():
            print(f"{kind.name} is not installed and left out", file=sys.stderr)
            continue
        peer = kind(folder, raw.batch, raw.batches)
        pairs: dict[str, list[tuple[float, float]]] = {"append": [], "scan": [], "gather": []}
        for _ in range(rounds):
            raw.fresh()
            warm(needed)
            base = {"append": seconds_of(raw.append), "scan": seconds_of(raw.scan)}
            base["gather"] = seconds_of(lambda: raw.gather(rows))
            peer.fresh()
            warm(needed)
            own = {"append": seconds_of(peer.append), "scan": seconds_of(peer.scan)}
            own["gather"] = seconds_of(lambda peer=peer: peer.gather(rows))
            for what, seconds in own.items():
                pairs[what].append((base[what] / seconds, seconds))
        assert np.array_equal(peer.gather(rows[:10]), raw.gather(rows[:10]))
        out += [_row(what, peer, found) for what, found in pairs.items()]
        shutil.rmtree(peer.folder)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the data, fewer rounds")
    parser.add_argument("--no-peers", action="store_true", help="only the store and the raw file")
    parser.add_argument("--only-scale", action="store_true", help="only what grows with counts")
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--save", type=Path, help="write the figures there as JSON")
    args = parser.parse_args()
    if args.only_scale:
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="sawlog-bench-") as name:
            rows = scale(Path(name), args.quick)
        sys.exit(0 if report(rows, "The store; how it grows", args.save) else 1)
    batches, rounds = (64, 5) if args.quick else (256, 9)
    batch = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="sawlog-bench-") as name:
        folder = Path(name)
        raw, own = Raw(folder, batch, batches), Sawlog(folder, batch, batches)
        rows = appending(raw, own, 2 * rounds)
        rows += reading(raw, own, 2 * rounds + 1)
        rows += finding(folder, rounds)
        shutil.rmtree(own.folder)
        rows += scale(folder, args.quick)
        if not args.no_peers:
            rows += peers(folder, raw, 1 if args.quick else 3)
        os.sync()
    title = f"{batch.nbytes * batches / 1e9:.2f} GB in {batch.nbytes / 1e6:.1f} MB batches"
    sys.exit(0 if report(rows, f"The store; speeds relative to raw; {title}", args.save) else 1)


if __name__ == "__main__":
    main()

"""Attribution: how well scores foretell retraining, and how fast they are, in one run.

The linear datamodeling score on digits: 1,000 training images of which 10 % have a wrong label, a
64-64-32-10 MLP, 100 random halves retrained over 20 seeds, 200 test images. Every method runs with
its default options, and other tools on the same checkpoints. Then query-train pairs a second from
disk against the bare matrix product over a memory map, and examples a second of fitting EK-FAC.
--large scores a million rows. Tools that are not installed are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import _attribution_peers
from _attribution_fit import fitting
from _attribution_large import LARGE, alone, large
from _attribution_lds import METHODS, Result, datamodeling, show
from _attribution_speed import pairs
from _lds import Settings
from _timing import Row, report, save_result


def scoring(args: argparse.Namespace) -> tuple[bool, list[Row]]:
    settings = Settings(draw=args.draw)
    if args.quick:
        settings = dataclasses.replace(settings, seeds=5, checkpoints=3)

    def wanted(rows: Any) -> list[Any]:
        fast = [row for row in rows if args.slow or not row.slow]
        return [row for row in fast if args.only is None or args.only.search(row.name)]

    peers = [] if args.no_peers else wanted(_attribution_peers.PEERS)
    results, noise = datamodeling(settings, wanted(METHODS), peers)
    show(
        results,
        f"Linear datamodeling score on {settings.data}, default options, draw {settings.draw}; "
        f"one half of the seeds for the other: {noise:.2f}",
    )
    return all(all(row.holds) for row in results), [row for each in results for row in _rows(each)]


def _rows(result: Result) -> list[Row]:
    """The scores of a method as rows, to save them beside the speeds."""
    one, several = result.marks
    ends, last = result.spread, result.several
    return [
        Row(result.method, "LDS, one checkpoint", result.one, *ends, result.seconds, one, True),
        Row(result.method, "LDS, mean of ten", last, last, last, result.seconds, several, True),
    ]


def speeds(args: argparse.Namespace) -> list[Row]:
    rows, peers = [], not args.no_peers
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="sawlog-bench-") as name:
        folder = Path(name)
        rows += pairs(folder, 5 if args.quick else 11, 256 if args.quick else 1024, peers)
        rows += fitting(folder, 1 if args.quick else 3, peers)
        if args.large:
            rows += large(folder, LARGE // 10 if args.quick else LARGE, [__file__, "--alone"])
        os.sync()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, checkpoints and rounds")
    parser.add_argument("--lds-only", action="store_true", help="only how good scores are")
    parser.add_argument("--speed-only", action="store_true", help="only how fast they are")
    parser.add_argument("--no-peers", action="store_true", help="without other tools")
    parser.add_argument("--only", type=re.compile, help="methods of the first table, as a regex")
    parser.add_argument("--large", action="store_true", help="a million rows as well: 8 GB of disk")
    parser.add_argument("--slow", action="store_true", help="methods that take a minute, as well")
    parser.add_argument("--draw", type=int, default=0, help="another draw of data and subsets")
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--save", type=Path, help="write the figures there as JSON")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        alone(args.alone)
        return
    if not args.no_peers and _attribution_peers.missing():
        print(f"not installed, left out: {', '.join(_attribution_peers.missing())}")
    good, saved = True, []
    if not args.speed_only:
        good, saved = scoring(args)
    if not args.lds_only:
        rows = speeds(args)
        good = report(rows, "Attribution; speeds relative to the bare product") and good
        saved += rows
    if args.save is not None:
        save_result(args.save, saved)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

"""What can be typed: one class for each command, one field for each argument.

Nothing here imports numpy or the store, so that ``--help`` answers at once. The command ``name`` is
carried out by ``run(arguments, screen)`` of the module ``sawlog.cli._name``, with _ for -.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from tyro.conf import Positional, arg

Json: TypeAlias = Annotated[
    bool,
    arg(help="Print JSON, and nothing else, on standard output.", help_behavior_hint=""),
]
Store: TypeAlias = Positional[Annotated[Path, arg(metavar="PATH", help="The folder of the store.")]]
Stores: TypeAlias = Positional[
    Annotated[tuple[Path, ...], arg(metavar="PATH [PATH ...]", help="The folders of the stores.")]
]


@dataclasses.dataclass(frozen=True)
class Ls:
    """List the stores under a folder, without reading their data.

    States: writing (a writer published within the last ten minutes and has not closed), closed,
    unfinished (not closed, and silent: killed or waiting), empty, damaged (at first sight: verify
    looks at everything), newer (than this sawlog), unreadable.
    """

    path: Positional[
        Annotated[Path, arg(metavar="[PATH]", help="A folder, searched to the bottom.")]
    ] = Path(".")
    json: Json = False


@dataclasses.dataclass(frozen=True)
class Show:
    """Show what is in a store: names, types, counts, sizes, last values, trends.

    A trend is the series from its first entry to its last, each block the mean of the entries
    there; x stands for entries none of which is a finite number.
    """

    path: Store
    names: Positional[
        Annotated[
            tuple[str, ...],
            arg(
                metavar="[NAME ...]",
                help="Only these names, or those that match a pattern such as 'grad/*'.",
                help_behavior_hint="(default: all)",
            ),
        ]
    ] = ()
    limit: Annotated[
        int, arg(help="Show at most so many names, 0 for all. JSON always has all.")
    ] = 200
    json: Json = False


@dataclasses.dataclass(frozen=True)
class Verify:
    """Check every byte of stores against its checksum.

    Lists each damaged or missing file, and what is still readable.
    """

    paths: Stores
    json: Json = False


@dataclasses.dataclass(frozen=True)
class Compact:
    """Merge small segments into large ones, and drop rows that were replaced.

    Others may read and write meanwhile. The merged segments are kept aside for readers that were
    open, and removed by the first compaction after the time of grace.
    """

    paths: Stores
    segment_mb: Annotated[
        int,
        arg(metavar="MB", help="How large segments become; twice as much memory is needed."),
    ] = 256
    grace: Annotated[
        float, arg(metavar="SECONDS", help="How long merged segments are kept; 0: not at all.")
    ] = 3600.0
    json: Json = False


@dataclasses.dataclass(frozen=True)
class Repair:
    """Give up what is damaged, so that the rest of a store can be used as before.

    Damaged files are moved to the folder damaged/ of the store. Without --yes nothing is changed:
    it says what would be given up, and exits with 2.
    """

    path: Store
    yes: Annotated[bool, arg(help="Do it.", help_behavior_hint="")] = False
    json: Json = False


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a store, or some of its names, in a format that other programs read.

    The ending of TARGET says which: .safetensors for everything in one file, or for one table
    parquet, arrow, feather, csv or jsonl. With --format, TARGET may be a folder, which gets a file
    for each table.
    """

    path: Store
    target: Positional[Annotated[Path, arg(metavar="TARGET", help="The file or folder to write.")]]
    names: Annotated[
        tuple[str, ...],
        arg(
            metavar="NAME [NAME ...]",
            help="Only these names, or those that match a pattern such as 'grad/*'.",
            help_behavior_hint="(default: all)",
        ),
    ] = ()
    format: Annotated[
        Literal["parquet", "arrow", "feather", "safetensors", "csv", "jsonl"] | None,
        arg(
            metavar="FORMAT",
            help="One of parquet, arrow, feather, safetensors, csv, jsonl.",
            help_behavior_hint="(default: by the ending of TARGET)",
        ),
    ] = None
    long: Annotated[
        bool,
        arg(help="Put entries one below the other, not side by side.", help_behavior_hint=""),
    ] = False
    overwrite: Annotated[bool, arg(help="Replace files that are there.", help_behavior_hint="")] = (
        False
    )
    json: Json = False


_DAMPING = (
    "What is added to the eigenvalues of the curvature. By default a share of their mean, plus k "
    "times the one that gradients typically meet over the number of examples: 0.05 and k = 1, for "
    "fisher 0.1 and k = 3; nothing for identity."
)
_RELATIVE = "Damping as a share of the mean eigenvalue of each layer."
_TYPICAL = "Damping as a share of the eigenvalue that gradients typically meet in each layer."

Train: TypeAlias = Positional[
    Annotated[Path, arg(metavar="TRAIN", help="The folder of a run, or of a store of its rows.")]
]
Curvature: TypeAlias = Annotated[
    Literal["ekfac", "kfac", "fisher", "diagonal", "shampoo", "identity"],
    arg(help="What gradients are preconditioned with; kept with the run, and used again."),
]
Share: TypeAlias = Annotated[
    float | None,
    arg(metavar="SHARE", help_behavior_hint=""),
]
Layers: TypeAlias = Annotated[
    tuple[str, ...],
    arg(
        metavar="LAYER [LAYER ...]",
        help="Only these layers, or those that match a pattern such as 'encoder.*'.",
        help_behavior_hint="(default: all)",
    ),
]
Budget: TypeAlias = Annotated[
    str | None,
    arg(
        metavar="BYTES",
        help="How much memory to use, about, as 2GB; each worker uses as much.",
        help_behavior_hint="(default: 256MiB)",
    ),
]
Text: TypeAlias = Annotated[
    Path | None,
    arg(
        metavar="FILE",
        help="The texts of the examples, to be shown with them: JSON lines or CSV with a field "
        "text, and id if ids are not the numbers of lines from 0 on; or one text a line.",
        help_behavior_hint="",
    ),
]
Overwrite: TypeAlias = Annotated[
    bool, arg(help="Replace the file of --out, or scores that are there.", help_behavior_hint="")
]
Weights: TypeAlias = Annotated[
    Literal["same", "any"],
    arg(help="same: rows of different weights of the model are an error; any: compare them."),
]
Nonfinite: TypeAlias = Annotated[
    Literal["error", "keep"],
    arg(help="error: infinite and NaN scores are an error; keep: they are the worst."),
]


@dataclasses.dataclass(frozen=True)
class Attribute:
    """Score the examples of a run for queries: which of them made the model answer as it does.

    Queries are rows as well: log them as a run of their own, with the same layers and compression,
    or choose examples of any run by --query. A positive score is that of an example that helps.
    """

    train: Train
    queries: Positional[
        Annotated[
            Path,
            arg(
                metavar="QUERIES",
                help="The same of the queries; of several stores in a "
                "run, that which is called as the one of TRAIN.",
            ),
        ]
    ]
    curvature: Curvature = "ekfac"
    damping: Annotated[
        float | None,
        arg(metavar="X", help=_DAMPING, help_behavior_hint=""),
    ] = None
    relative: Annotated[Share, arg(help=_RELATIVE)] = None
    typical: Annotated[Share, arg(help=_TYPICAL)] = None
    mode: Annotated[
        Literal["dot", "cosine", "l2"],
        arg(help="dot products, cosines, or minus squared distances"),
    ] = "dot"
    top: Annotated[int, arg(help="How many examples of each query; 0 for all.")] = 10
    sign: Annotated[
        Literal["positive", "negative", "absolute"],
        arg(help="Which are the best: the greatest scores, the least, or the farthest from 0."),
    ] = "positive"
    query: Annotated[
        tuple[str, ...],
        arg(metavar="ID [ID ...]", help="Only these queries.", help_behavior_hint="(default: all)"),
    ] = ()
    names: Layers = ()
    per_layer: Annotated[
        bool, arg(help="Give the scores of each layer, too.", help_behavior_hint="")
    ] = False
    out: Annotated[
        Path | None,
        arg(
            metavar="PATH",
            help="Save the scores: a .csv or .parquet file, or else a folder that "
            "sawlog.influence.load_scores reads.",
            help_behavior_hint="",
        ),
    ] = None
    overwrite: Overwrite = False
    budget: Budget = None
    workers: Annotated[
        int,
        arg(metavar="N", help="How many processes share the work; 0: this one does it."),
    ] = 0
    checkpoint: Annotated[
        Path | None,
        arg(
            metavar="DIR",
            help="A folder for what is done, with which the same command goes on.",
            help_behavior_hint="",
        ),
    ] = None
    text: Text = None
    weights: Weights = "same"
    nonfinite: Nonfinite = "error"
    json: Json = False


@dataclasses.dataclass(frozen=True)
class SelfInfluence:
    """Rank the examples of a run by their influence on themselves: likely label errors first.

    Nothing else in the data explains an example that has much: it is rare, hard or mislabelled.
    """

    train: Train
    top: Annotated[int, arg(help="How many examples to show; 0 for all.")] = 20
    least: Annotated[
        bool, arg(help="Those with the least influence first.", help_behavior_hint="")
    ] = False
    curvature: Curvature = "ekfac"
    damping: Annotated[
        float | None,
        arg(metavar="X", help=_DAMPING, help_behavior_hint=""),
    ] = None
    relative: Annotated[Share, arg(help=_RELATIVE)] = None
    typical: Annotated[Share, arg(help=_TYPICAL)] = None
    names: Layers = ()
    out: Annotated[
        Path | None,
        arg(
            metavar="PATH",
            help="Save the whole ranking as a .csv or .parquet file.",
            help_behavior_hint="",
        ),
    ] = None
    overwrite: Overwrite = False
    budget: Budget = None
    text: Text = None
    weights: Weights = "same"
    nonfinite: Nonfinite = "error"
    json: Json = False


Arguments: TypeAlias = Ls | Show | Verify | Compact | Repair | Export | Attribute | SelfInfluence

COMMANDS: dict[str, Callable[..., Arguments]] = {
    "ls": Ls,
    "show": Show,
    "verify": Verify,
    "compact": Compact,
    "repair": Repair,
    "export": Export,
    "attribute": Attribute,
    "self-influence": SelfInfluence,
}

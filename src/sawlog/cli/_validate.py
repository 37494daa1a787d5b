"""``sawlog validate``: compare scores with what retraining on subsets of the data does."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from rich.text import Text
from tyro.conf import Positional, arg

from sawlog import influence
from sawlog._format import number
from sawlog._table import Cell, TableColumn, folded, table
from sawlog._text import printable, printable_name
from sawlog.cli._arguments import Json
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput
from sawlog.errors import ArgumentError
from sawlog.influence import Scores, Validation

_COLUMNS = (
    TableColumn("left out", folds=16, style="bold"),
    TableColumn("examples", right=True),
    TableColumn("predicted", right=True),
    TableColumn("measured", right=True),
    TableColumn("standard error", right=True),
)


@dataclasses.dataclass(frozen=True)
class Validate:
    """Compare scores with what retraining on subsets of the data does.

    Prints the linear datamodeling score (LDS) with its interval: the rank correlation of the sum
    of the scores of a subset with the metric after training on it. With --train, models that the
    bank lacks are trained first; the command may run several times at once.

    examples:
      sawlog validate sawlog/mnist/scores/test bank
      sawlog validate scores bank --train my_project.training:train --subsets 50
    """

    scores: Positional[
        Annotated[
            Path,
            arg(metavar="SCORES", help="A folder of saved scores, or an array in a .npy file."),
        ]
    ]
    bank: Positional[
        Annotated[
            Path,
            arg(metavar="BANK", help="The folder of the metrics of retrained models."),
        ]
    ]
    train: Annotated[
        str | None,
        arg(
            metavar="MODULE:FUNCTION",
            help="The function train(ids, seed) that trains a model and returns the metric of "
            "each query. The module is searched in the current folder first.",
            help_behavior_hint="",
        ),
    ] = None
    measure: Annotated[
        str | None,
        arg(
            metavar="MODULE:FUNCTION",
            help="The function measure(model) that returns the metrics, if train returns a model.",
            help_behavior_hint="",
        ),
    ] = None
    drop: Annotated[float, arg(help="The share of examples that each subset leaves out.")] = 0.5
    subsets: Annotated[int, arg(help="The number of random subsets.")] = 100
    seeds: Annotated[int, arg(help="The number of models to train on each.")] = 5
    together: Annotated[int, arg(help="How many models one call of train trains.")] = 1
    better: Annotated[
        Literal["lower", "higher"] | None,
        arg(
            help="Whether a lower or a higher metric is better.",
            help_behavior_hint="(default: that of the bank, or lower)",
        ),
    ] = None
    groups: Annotated[
        int,
        arg(help="For how many queries to leave out the best and the worst examples; -1: none."),
    ] = 2
    share: Annotated[float, arg(help="The share of examples in such a group.")] = 0.05
    confidence: Annotated[float, arg(help="The confidence level of the interval.")] = 0.95
    save: Annotated[bool, arg(help="Save the result with the scores.", help_behavior_hint="")] = (
        False
    )
    json: Json = False


def run(arguments: Validate, output: CommandOutput) -> int:
    """Run ``sawlog validate``."""
    scores = _load(arguments.scores)
    if arguments.save and not isinstance(scores, Scores):
        raise ArgumentError(
            "--save needs a folder of scores: a .npy file has no place for it. Hint: "
            "scores.save(path) in Python writes such a folder; or omit --save."
        )
    found = influence.validate(
        scores,
        _imported("--train", arguments.train),
        measure=_imported("--measure", arguments.measure),
        bank=arguments.bank,
        drop=arguments.drop,
        subsets=arguments.subsets,
        seeds=arguments.seeds,
        together=arguments.together,
        better=arguments.better,
        groups=None if arguments.groups < 0 else arguments.groups,
        share=arguments.share,
        confidence=arguments.confidence,
        progress=output.shows_progress,
    )
    validation = found.validation
    assert validation is not None
    if arguments.save:
        found.save(arguments.scores)
    if arguments.json:
        output.print_json(_to_json(arguments, found, validation))
        return OK
    head = Text.assemble((printable(str(arguments.scores)), "bold"), "  ", str(validation))
    output.print(folded(head))
    if validation.groups:
        output.print("", table(_COLUMNS, _cells(validation), output.width))
    if arguments.save:
        output.print("", folded(f"saved to {printable(str(arguments.scores))}"))
    return OK


def _load(path: Path) -> Any:
    if path.suffix.lower() != ".npy":
        return influence.load_scores(path)
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise ArgumentError(
            f"{path} is not an array that numpy can load. Hint: np.save(path, scores) writes one."
        ) from None


def _imported(option: str, name: str | None) -> Callable[..., Any] | None:
    """Import a function that is given as ``module:function``."""
    if name is None:
        return None
    module, colon, function = name.partition(":")
    hint = f"Hint: {option} package.module:function, run in the folder of the package."
    if not colon or not module or not function:
        raise ArgumentError(f"{option} must be MODULE:FUNCTION; got {name!r}. {hint}")
    before = list(sys.path)
    try:
        sys.path.insert(0, "")
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ArgumentError(f"{option}: there is no module {error.name!r}. {hint}") from None
    finally:
        sys.path[:] = before
    if not callable(getattr(found, function, None)):
        raise ArgumentError(f"{option}: the module {module!r} has no function {function!r}.")
    imported: Callable[..., Any] = getattr(found, function)
    return imported


def _cells(validation: Validation) -> list[list[Cell]]:
    return [
        [
            printable_name(group.name),
            str(group.size),
            "" if group.predicted is None else number(group.predicted),
            number(group.measured),
            "" if group.standard_error is None else number(group.standard_error),
        ]
        for group in validation.groups
    ]


def _to_json(arguments: Validate, scores: Scores, validation: Validation) -> dict[str, Any]:
    said = validation.to_json()
    per_query = zip(scores.queries.tolist(), said.pop("per_query"), strict=True)
    listed = [{"query": query, "correlation": value} for query, value in per_query]
    where = {"scores": str(arguments.scores), "bank": str(arguments.bank)}
    return {**where, **said, "queries": listed, "saved": arguments.save}

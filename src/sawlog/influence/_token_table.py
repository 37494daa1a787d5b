"""Texts with the score of each token as its colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._rich import Style, Table, Text
from sawlog._text import printable
from sawlog.errors import ArgumentError

Tokens = Sequence[Sequence[str]] | Mapping[Any, Sequence[str]]

_GREEN, _RED = (0, 170, 70), (225, 50, 50)
_LEAST = 0.05  # of the greatest score of a query; below, nothing is coloured


def token_table(
    scores: Any,
    tokens: Tokens,
    ids: Sequence[Any] | None = None,
    *,
    queries: Sequence[Any] | None = None,
) -> Table:
    """The texts of examples, each token shaded by its score: green helps, red hurts.

    The shades of a query are relative to its greatest score, whatever the sign.

    Args:
        scores: ``[queries, examples, positions]``, as of :func:`token_scores`; those of one query
            or of one example may be without that axis.
        tokens: the tokens of each example, as texts; a dict has them by id.
        ids: those of the examples; their numbers by default.
        queries: what the queries are called; their numbers by default.

    Raises:
        ArgumentError: there are more tokens than positions, or scores where no token is.

    >>> from rich.console import Console
    >>> table = token_table(np.array([[[3.0, -1.0]]]), [["good ", "bad"]])
    >>> Console(width=40, color_system=None).print(table)  # doctest: +NORMALIZE_WHITESPACE
    ┏━━━━━━━┳━━━━┳━━━━━━━┳━━━━━━━━━━┓
    ┃ query ┃ id ┃ score ┃ tokens   ┃
    ┡━━━━━━━╇━━━━╇━━━━━━━╇━━━━━━━━━━┩
    │ 0     │ 0  │    +2 │ good bad │
    └───────┴────┴───────┴──────────┘
    """
    values = np.asarray(scores, np.float64)
    if not 1 <= values.ndim <= 3:
        raise ArgumentError(
            f"scores are [queries, examples, positions], got the shape {list(values.shape)}."
        )
    values = values.reshape(*(1,) * (3 - values.ndim), *values.shape)
    named = list(range(values.shape[1])) if ids is None else _plain(ids)
    asked = list(range(values.shape[0])) if queries is None else _plain(queries)
    if [len(asked), len(named)] != list(values.shape[:2]):
        raise ArgumentError(
            f"There are {len(asked)} queries and {len(named)} examples for scores of the shape "
            f"{list(values.shape)}."
        )
    table = Table()
    for title, side in (("query", "left"), ("id", "left"), ("score", "right"), ("tokens", "left")):
        table.add_column(title, justify="right" if side == "right" else "left", overflow="fold")
    for query, of_query in zip(asked, values, strict=True):
        sizes = np.abs(of_query[np.isfinite(of_query)])
        greatest = float(sizes.max(initial=0.0))
        for place, (each, own) in enumerate(zip(named, of_query, strict=True)):
            text = _shaded(_tokens_of(tokens, each, place, own), own, greatest)
            said = Text(printable(str(query)) if place == 0 else "")
            name = Text(printable(str(each)))
            last = place == len(named) - 1
            table.add_row(said, name, f"{own.sum():+.3g}", text, end_section=last)
    return table


def _plain(names: Any) -> list[Any]:
    return names.tolist() if isinstance(names, np.ndarray) else list(names)


def _tokens_of(tokens: Tokens, each: Any, place: int, scores: np.ndarray) -> list[str]:
    try:
        own = list(tokens[each] if isinstance(tokens, Mapping) else tokens[place])
    except (KeyError, IndexError):
        raise ArgumentError(f"There are no tokens of the example {each!r}.") from None
    if len(own) > len(scores):
        raise ArgumentError(
            f"The example {each!r} has {len(own)} tokens, and scores of {len(scores)} positions."
        )
    if scores[len(own) :].any():
        raise ArgumentError(
            f"The example {each!r} has {len(own)} tokens, and positions behind them have scores. "
            "Hint: give all tokens, also those that the model was fed with around the text."
        )
    return own


def _shaded(tokens: Sequence[str], scores: np.ndarray, greatest: float) -> Text:
    text = Text()
    for token, score in zip(tokens, scores.tolist(), strict=False):
        text.append(printable(token), _style(score, greatest))
    return text


def _style(score: float, greatest: float) -> Style:
    if not np.isfinite(score):
        return Style(reverse=True)
    share = abs(score) / greatest if greatest else 0.0
    if share < _LEAST:
        return Style()
    end = _GREEN if score > 0 else _RED
    shade = [round(255 + share * (colour - 255)) for colour in end]
    return Style(color="black", bgcolor=f"rgb({shade[0]},{shade[1]},{shade[2]})")

"""Tables of texts whose tokens are shaded by their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._rich import Style, Table, Text
from sawlog._text import printable, printable_name
from sawlog.errors import ArgumentError
from sawlog.influence._rows import id_list

Tokens = Sequence[Sequence[str]] | Mapping[Any, Sequence[str]]

_GREEN, _RED = (0, 170, 70), (225, 50, 50)
_LEAST = 0.05  # share of the greatest score of a query below which a token is not shaded


def token_table(
    scores: Any,
    tokens: Tokens,
    ids: Sequence[Any] | None = None,
    *,
    queries: Sequence[Any] | None = None,
) -> Table:
    """Return a rich table of texts, each token shaded by its score: green helps, red hurts.

    Shades are relative to the greatest magnitude among the scores of a query.

    Args:
        scores: ``[queries, examples, positions]``, as :func:`token_scores` returns them. The first
            axis may be omitted for one query, the first two for one example.
        tokens: the tokens of each example as strings, in order or as a dict by id.
        ids: the ids of the examples; their indices by default.
        queries: the labels of the queries; their indices by default.

    Raises:
        ArgumentError: an example has more tokens than positions, or scores at positions without a
            token.

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
            "`scores` must have the shape [queries, examples, positions]; got "
            f"{list(values.shape)}."
        )
    values = values.reshape(*(1,) * (3 - values.ndim), *values.shape)
    named = list(range(values.shape[1])) if ids is None else id_list(ids)
    asked = list(range(values.shape[0])) if queries is None else id_list(queries)
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
        for i, (each, own) in enumerate(zip(named, of_query, strict=True)):
            text = _shaded(_tokens_of(tokens, each, i, own), own, greatest)
            label = Text(printable_name(query) if i == 0 else "")
            name = Text(printable_name(each))
            last = i == len(named) - 1
            table.add_row(label, name, f"{own.sum():+.3g}", text, end_section=last)
    return table


def _tokens_of(tokens: Tokens, each: Any, index: int, scores: np.ndarray) -> list[str]:
    try:
        own = list(tokens[each] if isinstance(tokens, Mapping) else tokens[index])
    except (KeyError, IndexError):
        raise ArgumentError(f"There are no tokens of the example {each!r}.") from None
    if len(own) > len(scores):
        raise ArgumentError(
            f"The example {each!r} has {len(own)} tokens, but scores of {len(scores)} positions."
        )
    if scores[len(own) :].any():
        raise ArgumentError(
            f"The example {each!r} has {len(own)} tokens, but later positions have scores. "
            "Hint: pass all tokens that the model was given, also special ones."
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

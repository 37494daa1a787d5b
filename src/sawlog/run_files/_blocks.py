"""Blocks: the matrices of parameters that are logged, their ranks, and the bytes they take."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sawlog._format import count
from sawlog._html import html_table
from sawlog._rich import Console, Table
from sawlog.errors import ArgumentError
from sawlog.run_files._encode import row_bytes
from sawlog.run_files._options import Compression
from sawlog.store._format import _parse

_MOST_ROWS = 50  # layers in a notebook


@dataclasses.dataclass(frozen=True)
class Block:
    """The gradients of one matrix of parameters: a weight, with its bias if it has one.

    Args:
        name: the name of its first parameter in the model, such as ``"encoder.fc1.weight"``.
        parameters: the names of its parameters; a second one is the bias.
        shape: ``(rows, cols)``, or ``(groups, rows, cols)``, with the bias as one more row or
            column.
        inputs: the side of the inputs of the layer, ``"left"`` (rows) or ``"right"``.
        ranks: the number of dimensions of rows and columns that are stored; None is all of them.
    """

    name: str
    parameters: tuple[str, ...]
    shape: tuple[int, ...]
    inputs: str
    ranks: tuple[int | None, int | None] = (None, None)

    @property
    def rows(self) -> int:
        """The size of the left side."""
        return self.shape[-2]

    @property
    def cols(self) -> int:
        """The size of the right side."""
        return self.shape[-1]

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of what is logged for each example."""
        return (*self.shape[:-2], self.ranks[0] or self.rows, self.ranks[1] or self.cols)

    @property
    def elements(self) -> int:
        """The number of elements that are logged for each example."""
        return math.prod(self.stored)

    def parts(self, rows: Any) -> dict[str, Any]:
        """Split whole gradients ``[batch, *shape]`` into those of the weight and of the bias.

        Their elements are in the order of the parameters, so they can be reshaped to those.

        >>> import numpy as np
        >>> block = Block("fc.weight", ("fc.weight", "fc.bias"), (2, 4), "right")
        >>> {name: part.shape for name, part in block.parts(np.zeros((5, 2, 4))).items()}
        {'fc.weight': (5, 2, 3), 'fc.bias': (5, 2)}
        """
        if len(self.parameters) == 1:
            return {self.name: rows}
        if self.inputs == "left":
            weight, bias = rows[..., :-1, :], rows[..., -1, :]
        else:
            weight, bias = rows[..., :-1], rows[..., -1]
        return dict(zip(self.parameters, (weight, bias), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the block in types of JSON, for the metadata of a store."""
        values = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Block:
        """Read what :meth:`to_json` returned.

        Raises:
            ValueError: it is something else.
        """
        said = _parse.mapping(stored, "a block")
        if unknown := said.keys() - {field.name for field in dataclasses.fields(cls)}:
            _parse.fail(f"a block has {_parse.shown(min(unknown))}")
        shape = _parse.shape(_parse.field(said, "shape"), "'shape'")
        ranks = _parse.sequence(said.get("ranks", [None, None]), "'ranks'")
        if len(shape) < 2 or len(ranks) != 2:
            _parse.fail("a block has fewer than two sides")
        left, right = (None if r is None else _parse.integer(r, "a rank", 1) for r in ranks)
        return cls(
            _parse.text(_parse.field(said, "name"), "'name'"),
            _parse.texts(_parse.field(said, "parameters"), "'parameters'"),
            shape,
            _parse.choice(_parse.field(said, "inputs"), "'inputs'", ("left", "right")),
            (left, right),
        )


def with_rank(block: Block, rank: int) -> Block:
    """Return the block with at most ``rank`` dimensions on each side.

    A block with a single column is a vector, and keeps ``rank**2`` elements like a matrix.
    """
    if block.cols == 1:
        most = rank * rank
        return dataclasses.replace(block, ranks=(None if block.rows <= most else most, None))
    ranks = (None if block.rows <= rank else rank, None if block.cols <= rank else rank)
    return dataclasses.replace(block, ranks=ranks)


def compressed(blocks: Sequence[Block], how: Compression | None, dtype: str) -> list[Block]:
    """Return the blocks with their ranks.

    Raises:
        ArgumentError: an example takes more than ``how.bytes`` even at rank 1.
    """
    if how is None:
        return list(blocks)
    if how.rank is not None:
        return [with_rank(block, how.rank) for block in blocks]
    assert how.bytes is not None
    least = _bytes([with_rank(block, 1) for block in blocks], dtype)
    if least > how.bytes:
        raise ArgumentError(
            f"{len(blocks)} layers take {least} bytes for each example even at rank 1, and "
            f"compress.bytes is {how.bytes}. Hint: watch fewer layers by names=, or allow more."
        )
    low, high = 1, max(max(block.rows, block.cols) for block in blocks)
    while low < high:  # the greatest rank that fits
        middle = (low + high + 1) // 2
        if _bytes([with_rank(block, middle) for block in blocks], dtype) <= how.bytes:
            low = middle
        else:
            high = middle - 1
    return [with_rank(block, low) for block in blocks]


def _bytes(blocks: Sequence[Block], dtype: str) -> int:
    return sum(row_bytes(block.elements, dtype) for block in blocks)


@dataclasses.dataclass(frozen=True)
class Report:
    """The watched layers and their size; printing it shows a table.

    Args:
        blocks: the blocks that are logged.
        dtype: the dtype in which they are stored.
        skipped: names of parameters that are not watched, and why.
    """

    blocks: tuple[Block, ...]
    dtype: str
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def bytes_per_example(self) -> int:
        """The number of bytes of the gradients of an example."""
        return _bytes(self.blocks, self.dtype)

    def __rich__(self) -> Table:
        total = f"{self.bytes_per_example:,}"
        table = Table(title=count(len(self.blocks), "watched layer"), show_footer=True)
        table.add_column("layer", footer="total", overflow="fold")
        table.add_column("shape", footer="")
        table.add_column("stored", footer="")
        table.add_column("numbers", justify="right", footer=f"{self._elements:,}")
        table.add_column("bytes / example", justify="right", footer=total)
        for block in self.blocks:
            bias = " + bias" if len(block.parameters) > 1 else ""
            table.add_row(
                block.name + bias,
                _by(block.shape),
                _by(block.stored) if any(block.ranks) else "whole",
                f"{block.elements:,}",
                f"{row_bytes(block.elements, self.dtype):,}",
            )
        if self.skipped:
            table.caption = "\n".join(f"not watched: {name} ({why})" for name, why in self._some)
        return table

    def _repr_html_(self) -> str:
        """Return the layers as a small table for notebooks."""
        rows = [
            (
                block.name + (" + bias" if len(block.parameters) > 1 else ""),
                _by(block.shape),
                _by(block.stored) if any(block.ranks) else "whole",
                f"{block.elements:,}",
                f"{row_bytes(block.elements, self.dtype):,}",
            )
            for block in self.blocks[:_MOST_ROWS]
        ]
        notes = [f"{self.bytes_per_example:,} bytes for each example."]
        if len(self.blocks) > _MOST_ROWS:
            notes.append(f"{len(self.blocks) - _MOST_ROWS:,} more layers.")
        notes += [f"Not watched: {name} ({why})." for name, why in self._some]
        columns = ("layer", "shape", "stored", "numbers", "bytes / example")
        title = count(len(self.blocks), "watched layer")
        return html_table(title, columns, rows, right=(3, 4), note=" ".join(notes))

    @property
    def _elements(self) -> int:
        return sum(block.elements for block in self.blocks)

    @property
    def _some(self) -> list[tuple[str, str]]:
        some = list(self.skipped[:10])
        if len(self.skipped) > 10:
            some.append((f"{len(self.skipped) - 10} more", "see report.skipped"))
        return some

    def __str__(self) -> str:
        text = io.StringIO()
        Console(width=120, file=text, color_system=None).print(self)
        return text.getvalue()


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))

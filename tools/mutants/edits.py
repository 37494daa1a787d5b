"""The small changes that are made to a module, each as a mistake would look."""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
FUNCTIONS = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
    "zeros": "ones",
    "ones": "zeros",
    "sorted": "list",
    "append": "extend",
    "cumsum": "cumprod",
    "argmin": "argmax",
    "argmax": "argmin",
    "sum": "mean",
    "mean": "sum",
    "reversed": "list",
    "repeat": "tile",
    "tile": "repeat",
}
TRANSPOSED = ("T", "mT")


@dataclasses.dataclass(frozen=True)
class Edit:
    """Bytes ``start`` to ``stop`` of a file become ``new``; ``lines`` are those it touches."""

    start: int
    stop: int
    new: str
    what: str
    lines: tuple[int, int]

    def apply(self, source: bytes) -> bytes:
        """Return the source with this change."""
        return source[: self.start] + self.new.encode() + source[self.stop :]


def edits_of(source: bytes) -> list[Edit]:
    """Every change of a module that still compiles, in the order of the source."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    found = dict.fromkeys(edit for edit in finder.edits if _compiles(edit.apply(source)))
    return sorted(found, key=lambda edit: (edit.start, edit.stop, edit.new))


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class _Finder(ast.NodeVisitor):
    """Collects the edits of a tree. What only makes text or types is passed over."""

    def __init__(self, source: bytes) -> None:
        self.edits: list[Edit] = []
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def _add(self, node: Any, new: ast.AST | str, what: str) -> None:
        start = self._starts[node.lineno - 1] + node.col_offset
        stop = self._starts[node.end_lineno - 1] + node.end_col_offset
        text = new if isinstance(new, str) else f"({ast.unparse(new)})"
        self.edits.append(Edit(start, stop, text, what, (node.lineno, node.end_lineno)))

    def _changed(self, node: Any, what: str, **fields: Any) -> None:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        self._add(node, new, what)

    # -- what is passed over ------------------------------------------------------------------

    def _pass_over(self, node: ast.AST) -> None:
        del node

    visit_Raise = visit_Assert = visit_JoinedStr = visit_Import = visit_ImportFrom = _pass_over

    def visit_FunctionDef(self, node: Any) -> None:
        """Visit the body and the defaults; not the annotations."""
        for part in (*node.decorator_list, *node.args.defaults, *node.body):
            self.visit(part)
        for default in node.args.kw_defaults:
            if default is not None:
                self.visit(default)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value; not the annotation."""
        if node.value is not None:
            self.visit(node.value)

    # -- what is changed ------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        """Off by one, or the opposite."""
        for i, op in enumerate(node.ops):
            other = COMPARISONS[type(op)]()
            self._changed(node, "comparison", ops=[*node.ops[:i], other, *node.ops[i + 1 :]])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Another operation."""
        text = isinstance(node.left, (ast.Constant, ast.JoinedStr)) and not _is_number(node.left)
        if type(node.op) in OPERATORS and not text:
            self._changed(node, "operation", op=OPERATORS[type(node.op)]())
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """``and`` for ``or``, and each part left out."""
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        self._changed(node, "and/or", op=other)
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            new = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            self._add(node, new, "a condition left out")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Without the sign or the ``not``."""
        if not isinstance(node.op, ast.UAdd):
            self._add(node, node.operand, "sign or not left out")
        if not (isinstance(node.op, ast.USub) and _is_number(node.operand)):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Another number, or the opposite."""
        value = node.value
        if isinstance(value, bool):
            self._add(node, ast.Constant(not value), "constant")
        elif isinstance(value, int):
            self._add(node, ast.Constant(value + 1), "constant")
            if value == 1:
                self._add(node, ast.Constant(0), "constant")
        elif isinstance(value, float):
            self._add(node, ast.Constant(2 * value if value else 1.0), "constant")

    def visit_If(self, node: ast.If) -> None:
        """Make a condition hold always or never."""
        self._always_or_never(node)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Make a condition hold always or never."""
        self._always_or_never(node)
        self.generic_visit(node)

    def _always_or_never(self, node: Any) -> None:
        if not isinstance(node.test, ast.Constant):
            for value in (True, False):
                self._add(node.test, ast.Constant(value), f"always {value}")

    def visit_Slice(self, node: ast.Slice) -> None:
        """Leave out a bound of a slice."""
        for bound in ("lower", "upper", "step"):
            if getattr(node, bound) is not None:
                new = copy.copy(node)
                setattr(new, bound, None)
                self._add(node, ast.unparse(new), f"slice without its {bound} bound")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Another function, arguments swapped, an option left out."""
        name = getattr(node.func, "id", getattr(node.func, "attr", None))
        if name in FUNCTIONS:
            func = copy.copy(node.func)
            setattr(func, "id" if isinstance(func, ast.Name) else "attr", FUNCTIONS[name])
            self._changed(node, "function", func=func)
        if self._can_swap(node) and name not in ("isinstance", "getattr", "hasattr", "setattr"):
            first, second, *rest = node.args
            self._changed(node, "arguments swapped", args=[second, first, *rest])
        if name == "range" and node.args:
            at = min(1, len(node.args) - 1)
            less = ast.BinOp(node.args[at], ast.Sub(), ast.Constant(1))
            args = [*node.args[:at], less, *node.args[at + 1 :]]
            self._changed(node, "without its last", args=args)
        if name == "where" and len(node.args) == 3:
            first, second, third = node.args
            self._changed(node, "branches swapped", args=[first, third, second])
        for argument in node.args:
            self._items_left_out(argument)
        for i, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                rest = [*node.keywords[:i], *node.keywords[i + 1 :]]
                self._changed(node, f"without {keyword.arg}=", keywords=rest)
        self.generic_visit(node)

    def _items_left_out(self, node: ast.expr) -> None:
        """Leave out a part of a key, a hash or a shape."""
        if isinstance(node, ast.Tuple) and len(node.elts) > 1:
            for i in range(len(node.elts)):
                self._changed(node, "item left out", elts=[*node.elts[:i], *node.elts[i + 1 :]])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Leave out a transpose."""
        if node.attr in TRANSPOSED:
            self._add(node, node.value, "not transposed")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Let a filter pass everything, or nothing."""
        for test in node.ifs:
            for value in (True, False):
                self._add(test, ast.Constant(value), f"always {value}")
        self.generic_visit(node)

    @staticmethod
    def _can_swap(node: ast.Call) -> bool:
        two = node.args[:2]
        return len(two) == 2 and not any(isinstance(x, ast.Starred) for x in two)

    def _left_out(self, node: Any) -> None:
        self._add(node, "pass", "statement left out")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Leave out a call that has an effect."""
        if isinstance(node.value, ast.Call):
            self._left_out(node)
        elif not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    visit_AugAssign: Callable[[Any, ast.AugAssign], None] = _left_out

    def visit_Assign(self, node: ast.Assign) -> None:
        """Leave out the setting of an item or attribute."""
        if all(isinstance(t, (ast.Attribute, ast.Subscript)) for t in node.targets):
            self._left_out(node)
        else:
            self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        """On instead of out."""
        self._add(node, "continue", "continue for break")

    def visit_Continue(self, node: ast.Continue) -> None:
        """Out instead of on."""
        self._add(node, "break", "break for continue")


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float, complex))


def pick(edits: list[Edit], most: int | None, seed: int) -> Iterator[Edit]:
    """All of them, or ``most`` that are spread evenly over the module."""
    if most is None or len(edits) <= most:
        yield from edits
        return
    for i in range(most):
        yield edits[(i * len(edits) + seed) // most % len(edits)]

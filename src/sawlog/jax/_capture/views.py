"""Views: which elements of a parameter a value has, through reshapes, transposes and loops.

Every dimension of a view is a product of *atoms*, and an atom is a part of a dimension of the
parameter. The parameter ``[6, 4]``, reshaped to ``[2, 12]``, has the dimensions ``(2)`` and
``(3, 4)``, where 2 and 3 are the two atoms of its first dimension.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, order=True)
class Atom:
    """``size`` steps of ``stride`` along dimension ``dim`` of a parameter."""

    dim: int
    stride: int
    size: int

    def split(self, first: int) -> tuple[Atom, Atom]:
        """Split into an outer atom of size ``first`` and an inner one."""
        inner = self.size // first
        return Atom(self.dim, self.stride * inner, first), Atom(self.dim, self.stride, inner)


Atoms = tuple[Atom, ...]


@dataclasses.dataclass(frozen=True)
class ParameterView:
    """The elements of a parameter in another arrangement.

    Args:
        name: The name of the parameter.
        dims: The atoms of each dimension, outermost first.
        loops: The depths of the loops whose iterations use different slices of the parameter.
        looped: The atoms along which these loops run.
    """

    name: str
    dims: tuple[Atoms, ...]
    loops: tuple[int, ...] = ()
    looped: Atoms = ()

    @classmethod
    def of(cls, name: str, shape: Sequence[int]) -> ParameterView:
        """Return a parameter as it is."""
        return cls(name, tuple(((Atom(i, 1, n),) if n != 1 else ()) for i, n in enumerate(shape)))

    def transposed(self, order: Sequence[int]) -> ParameterView:
        """Permute the dimensions."""
        return self._with(tuple(self.dims[dim] for dim in order))

    def reshaped(self, shape: Sequence[int]) -> ParameterView | None:
        """Split and merge dimensions; None if a dimension would contain a part of an atom."""
        rest = [atom for dim in self.dims for atom in dim]
        if 0 in shape or not all(atom.size for atom in rest):
            return None  # no elements
        dims = []
        for size in shape:
            found: list[Atom] = []
            while math.prod(atom.size for atom in found) != size:
                if not rest:
                    return None
                missing, remainder = divmod(size, math.prod(atom.size for atom in found))
                atom = rest.pop(0)
                if remainder:
                    return None
                if missing % atom.size:
                    if atom.size % missing:
                        return None
                    atom, inner = atom.split(missing)
                    rest.insert(0, inner)
                found.append(atom)
            dims.append(tuple(found))
        return None if rest else self._with(tuple(dims))

    def atoms(self, dims: Sequence[int]) -> Atoms:
        """Return the atoms of some dimensions, in this order."""
        return tuple(atom for dim in dims for atom in self.dims[dim])

    def iterated(self, depth: int) -> ParameterView:
        """Return what the iterations of a loop over the first dimension see."""
        return ParameterView(
            self.name, self.dims[1:], (*self.loops, depth), (*self.looped, *self.dims[0])
        )

    def _with(self, dims: tuple[Atoms, ...]) -> ParameterView:
        return dataclasses.replace(self, dims=dims)


def canonical(atoms: Sequence[Atom]) -> Atoms:
    """Sort atoms as the parameter has them, and merge neighbours."""
    merged: list[Atom] = []
    for atom in in_order(atoms):
        last = merged[-1] if merged else None
        if last and last.dim == atom.dim and last.stride == atom.stride * atom.size:
            merged[-1] = Atom(atom.dim, atom.stride, last.size * atom.size)
        else:
            merged.append(atom)
    return tuple(merged)


def in_order(atoms: Sequence[Atom]) -> Atoms:
    """Sort atoms as the parameter has them."""
    return tuple(sorted(atoms, key=lambda atom: (atom.dim, -atom.stride)))


def size_of(atoms: Sequence[Atom]) -> int:
    """Return the number of elements."""
    return math.prod(atom.size for atom in atoms)

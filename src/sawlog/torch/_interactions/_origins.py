"""Which values of a tape are made of parameters, buffers and constants alone.

They are the same for all examples. A tensor that was given to the program, a random number and what
is computed from either may belong to examples. A constant counts only where the model makes it: a
program may make its inputs, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sawlog.torch._graph._autograd_graph import ACCUMULATE, Node
from sawlog.torch._graph._memory import memory_of
from sawlog.torch._interactions._flow import Flow, depends_on_values, name_of
from sawlog.torch._interactions._tape import Tape
from sawlog.torch._model._constants import ModelTensors

_REPEATS = {"expand", "repeat"}
_RANGES = {"arange", "linspace", "logspace", "scalar_tensor"}


class Origins:
    """Where the values of a batch come from.

    Args:
        tape: its operations.
        tensors: the parameters and buffers of the model.
        batch: the number of examples.
    """

    def __init__(self, tape: Tape, tensors: ModelTensors, batch: int) -> None:
        self._tape, self._given, self._repeated = tape, Flow(tape), Flow(tape)
        own_memory = tensors.memories() - tape.arguments
        for number, external in tape.externals.items():
            single = batch > 1 and not external.tensor.dim()  # it has no room for examples
            if not single and memory_of(external.tensor) not in own_memory:
                self._given.add(number)
        for place, operation in enumerate(tape.operations):
            own = depends_on_values(operation) or tape.is_of_model(place)
            if operation.seeds or not own:
                self._given.add_results(place, operation)
            else:
                self._given.follow(place, operation)
            if name_of(operation) in _REPEATS or not (
                depends_on_values(operation) or name_of(operation) in _RANGES
            ):
                self._repeated.add_results(place, operation)
            else:
                self._repeated.follow(place, operation)

    def is_once_for_all(self, number: int) -> bool:
        """Return whether a value is the same for all examples, and not repeated for each."""
        return not self._given.has(number) and not self._repeated.has(number)

    def of_nodes(self, nodes: Sequence[Node]) -> dict[int, bool]:
        """Return whether nodes are of parameters and constants alone, where it is known."""
        found = {}
        for number, node in enumerate(nodes):
            if node.name() == ACCUMULATE:
                continue
            values = list(self._values(node))
            if values:
                found[number] = not any(map(self._given.has, values))
        return found

    def _values(self, node: Node) -> Iterator[int]:
        """Yield the values of the outputs of a node that some operation used."""
        for place in range(len(node._input_metadata)):
            found = self._tape.edges.get((node._sequence_nr(), place, node.name()))
            if found is not None:
                yield found[0]

"""Interactions between examples that leave no gradient, found by replaying a forward pass.

In ``h - h.detach().mean(0)`` each example depends on the mean of the batch, and autograd does not
know it: the gradients of the examples look separate, and the rows would be wrong without an error.
So the first batch of a graph structure is recorded and run again with other data:

- ``_recorder`` is a dispatch mode that writes each operation of PyTorch to a ``_tape``. The tape
  has the operations and their arguments, but holds none of the tensors that were computed.
- ``_replay`` runs the operations of a tape again, and may change a tensor on the way.
- ``_replacement`` overwrites half of the examples by another example, in every tensor in which the
  proof has shown which elements belong to which example (``ExampleTensor``).
- ``_replayed_loss`` returns the terms of the loss, and their gradients, of such a replay.
- ``_check`` compares them: if the loss of an example changes although only others were replaced,
  it depends on them. Here, another mean changes the loss of all examples, which is an error.
  ``_first_mixture`` finds the operation for the message: ``'mean' of train.py:12``.

``_before_layers`` says where examples are in front of the first watched layer. What a program
computes in Python is not on the tape: ``_numbers`` compares such numbers with the next batch's.

``_policy`` decides which batches are recorded. Where all that examples do to the loss is in its
gradient (``_differentiable``), nothing is replayed.
"""

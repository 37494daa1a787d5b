"""The proof that rows add up to the gradient of the batch, and the plan it results in.

For a batch of two, let the first backward pass start from ``l0 + l1`` and the second one from
``2 * l0 + 3 * l1``. In the second, a gradient of example 0 alone is exactly doubled, and one of
example 1 tripled, so the ratios tell which elements belong to which example. The rows ``r0`` and
``r1`` are right if ``r0 + r1`` and ``2 * r0 + 3 * r1`` are the gradients of the parameter in the
two passes. (``_graph/_example_layout`` has the real factors.)

- ``_passes`` runs the backward passes; ``_measured_gradients`` collects their gradients.
- ``_example_axis`` and ``_use_layouts`` find the examples in outputs of layers and operations.
- ``_block_gradients`` and ``_operation_rows`` compute rows, by layer rules or by operation.
- ``_row_check`` and ``_block_sums`` compare their sums with the gradients of the batch.
- ``_plan`` is the result. It serves later batches of the same graph structure, as long as the
  attributes that decide where the examples are (``_layout_attributes``) are the same.
- ``_prover`` is the order of all this.
"""

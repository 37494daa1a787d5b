"""Per-example gradients of weights, by kind of operation."""

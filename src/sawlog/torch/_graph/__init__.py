"""The autograd graph: its structure, uses of parameters, and where the examples are."""

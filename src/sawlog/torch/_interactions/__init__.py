"""Interactions between examples that leave no gradient, found by replaying a forward pass."""

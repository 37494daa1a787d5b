"""Capture while a model trains: steps, learning rates, and the state of the optimizer."""

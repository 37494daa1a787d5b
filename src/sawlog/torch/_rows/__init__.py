"""Rows of a batch: projected gradients, statistics, forward and backward logs."""

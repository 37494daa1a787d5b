"""Scores of single positions, from the stored factors of each layer."""

"""Averages over few runs: standard errors, rough runs, examples that some runs lack."""

"""Runs: one per seed, known on the device by a number, and the loggers that write them."""

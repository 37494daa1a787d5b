"""Hooks on modules and on autograd for the time of one batch."""

"""``run.check``: examples run alone by plain autograd, compared with the batch."""

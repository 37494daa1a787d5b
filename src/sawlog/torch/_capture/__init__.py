"""The capture of one batch, from a backward pass to rows."""

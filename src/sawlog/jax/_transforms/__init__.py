"""The transformations: spool, tap and strip, and what they collect with."""

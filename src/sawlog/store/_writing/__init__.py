"""Writing: from a call of the user to a published segment."""

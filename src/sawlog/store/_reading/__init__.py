"""Reading: the segments that count, and their rows and entries."""

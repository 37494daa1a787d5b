"""Save a logdict as records in a store, and load it back bit for bit."""

"""Saving a logdict as records in a store, and loading it bit for bit."""

"""Logs in the shapes of other libraries: tables of Arrow, pandas and polars, and files."""

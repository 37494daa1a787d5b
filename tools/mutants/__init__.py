"""Break one place of a module at a time, and see whether its tests notice.

``python -m tools.mutants MODULE...`` or ``make mutants MODULE=...``; CONTRIBUTING.md says when.
"""

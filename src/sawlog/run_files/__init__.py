"""The files of a capture run, and the types that describe them.

A run is a folder. ``logs/`` has stores of rows, ``statistics/`` sums by process, ``curvature/``
what was fitted to rows, and ``run.json`` the options. This package knows their names, encodings and
metadata; ``capture`` writes them and ``influence`` reads them. It imports no framework.
"""

"""The files of a capture run, and the types that describe them.

A run is a folder: ``logs/`` contains stores of rows, ``statistics/`` sums by process,
``curvature/`` fitted curvatures, and ``run.json`` the options. This package defines their names,
encodings and metadata; ``capture`` writes them and ``influence`` reads them. It imports no
framework.
"""

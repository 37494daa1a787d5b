"""Rules that follow the examples through first-order equations, in a table by name."""

from sawlog.jax._capture.axis_rules import collectives as collectives
from sawlog.jax._capture.axis_rules import elementwise as elementwise
from sawlog.jax._capture.axis_rules import indexing as indexing
from sawlog.jax._capture.axis_rules import moving as moving
from sawlog.jax._capture.axis_rules import products as products
from sawlog.jax._capture.axis_rules import reducing as reducing

"""The JAX backend of :mod:`sawlog.capture`: runs that log what ``sawlog.jax.capture`` computes.

- ``run``: ``JaxRun``, with ``watch``, ``record`` and ``extract``
- ``backend``: a loss function and its parameters, as :class:`sawlog.capture.Backend` needs them
- ``capturer``: from a batch to rows, statistics and columns
"""

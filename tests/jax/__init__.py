"""Tests of logging inside JAX programs."""

"""Capture inside modules that ``torch.compile`` compiles.

Compiled code calls no hooks that were registered after it was compiled, and its backward pass is
one node of the graph. So a region, a module that the user compiled, is compiled once more for the
capture, with hooks that are traced: they return the inputs of every watched layer as outputs of
the region, and add a probe to its output, a tensor whose gradient is that of the output.
"""

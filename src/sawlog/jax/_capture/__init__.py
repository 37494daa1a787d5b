"""Per-example gradients of a JAX function, from its jaxpr.

A loss function of parameters and a batch is traced once. Three ideas, each in files of its own:

- **Where the examples are** (``axes``, ``axis_rules``): the dimension of the examples is followed
  from the batch through every equation. An equation that combines examples is named in an error.
- **Constants** (``constants``, ``links``): a value that is computed from parameters alone is the
  same for all examples. Where it meets a value that has examples, the equation is a *use*.
- **Uses** (``uses``, ``factors``): the output of a use passes through an identity whose backward
  pass computes the gradient of each example (or its factors, or its projection) from the cotangent
  of the output and the inputs. It is delivered as the cotangent of an array of zeros, so that one
  backward pass of the whole batch fills all of them, also through loops and checkpoints.
"""

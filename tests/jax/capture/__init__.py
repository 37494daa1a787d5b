"""Per-example gradients of JAX functions, against ``vmap(grad)``."""

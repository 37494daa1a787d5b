"""The proof that rows add up to the gradient of the batch, and the plan it results in."""

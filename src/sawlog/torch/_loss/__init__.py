"""The loss: its terms, and the scale of each example in them."""

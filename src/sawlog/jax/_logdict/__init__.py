"""``logdict``: logged arrays with steps and masks, and the operations on them."""

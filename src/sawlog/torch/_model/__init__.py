"""The model: which layers are watched, their names, and a fingerprint of all weights."""

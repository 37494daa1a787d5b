"""Do scores predict what retraining does: subsets, retrained models, the LDS, groups, recall."""

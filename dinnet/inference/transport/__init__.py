"""How tensors and messages travel between scheduler and workers."""

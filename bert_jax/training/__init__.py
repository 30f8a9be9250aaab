"""Training: sharding, optimizer, step, loop, checkpoints, evaluation, reports."""

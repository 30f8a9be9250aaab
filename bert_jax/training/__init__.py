"""Train models: sharding, optimizers, the training loop, checkpoints, evaluation and reports."""

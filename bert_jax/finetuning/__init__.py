"""Fine-tune models on labeled tasks, evaluate them, and sweep over hyperparameters."""

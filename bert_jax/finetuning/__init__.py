"""Fine-tuning runs: config, tasks, scores, evaluation, and sweeps."""

"""Send a run's metrics to Weights & Biases and MLflow."""

"""Read labeled examples and convert them to batches for fine-tuning, without importing JAX."""

"""Read labeled examples for fine-tuning, build features and batch them, without importing JAX."""

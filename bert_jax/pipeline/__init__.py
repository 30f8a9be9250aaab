"""Turn records into batches of masked examples for pretraining, without importing JAX."""

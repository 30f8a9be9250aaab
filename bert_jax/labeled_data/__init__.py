"""Labeled examples for fine-tuning: files, features and batches, without importing JAX."""

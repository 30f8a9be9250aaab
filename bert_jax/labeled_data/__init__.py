"""Labeled examples for fine-tuning: files, features, batches. Imports no JAX."""

"""Expand inputs into files and read them as a stream of documents, without importing JAX."""

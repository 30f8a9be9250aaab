"""Turn documents into records on disk, and read them back, without importing JAX."""

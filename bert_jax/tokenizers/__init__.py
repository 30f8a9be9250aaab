"""Load, train and save tokenizers, and find the words in a text, without importing JAX."""

"""Load, train and save tokenizers, and find the words of a text. Imports no JAX."""

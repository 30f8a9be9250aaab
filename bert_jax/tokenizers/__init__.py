"""Tokenizers: their files, training them, and the words they see. Imports no JAX."""

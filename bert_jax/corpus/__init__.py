"""Prepare corpora: turn documents into records on disk, and read them back. Imports no JAX."""

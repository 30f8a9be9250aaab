"""Prepare corpora: from documents to records on disk and back. Imports no JAX."""

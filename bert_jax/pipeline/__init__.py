"""Make pretraining batches: from records to masked examples. Imports no JAX."""

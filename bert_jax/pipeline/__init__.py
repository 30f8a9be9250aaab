"""Turn records into masked examples, in batches for pretraining. Imports no JAX."""

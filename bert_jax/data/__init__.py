"""What is learned from: text to records, records to batches. Imports no JAX."""

"""Raw text: find the inputs and read them as a stream of documents. Imports no JAX."""

"""Implement the `bert-jax` command, with one module per verb or group of small verbs."""

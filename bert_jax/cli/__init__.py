"""Implement the `bert-jax` command, with a module for each verb or for a few small verbs."""

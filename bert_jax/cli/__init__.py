"""The `bert-jax` command: one module for each verb, and the reading of configs."""

"""The doors: one thin file for each verb of the `bert-jax` command, and the configuration door."""

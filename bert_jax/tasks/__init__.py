"""Define tasks, each of which provides a model, its loss and its metrics through one protocol."""

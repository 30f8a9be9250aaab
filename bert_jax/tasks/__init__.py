"""Define tasks, which put a model, its loss and its metrics behind one small protocol."""

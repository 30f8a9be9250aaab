"""Tasks: a model head, a loss, and its metrics behind one small protocol."""

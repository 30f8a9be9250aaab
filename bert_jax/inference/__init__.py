"""Using what was trained: work directories, and models that take text."""

"""Models of other frameworks: import, export, and compare."""

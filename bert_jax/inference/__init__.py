"""Models that take text and return answers."""

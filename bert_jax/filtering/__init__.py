"""Find documents that a corpus should leave out: poor text, near-duplicates and evaluation data."""

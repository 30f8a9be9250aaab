"""Work directories of runs: their contents, their owner, and how they are written."""

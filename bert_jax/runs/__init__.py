"""Work directories: their files, their checkpoints, and the run that owns them."""

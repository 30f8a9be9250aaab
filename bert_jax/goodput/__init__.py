"""Record and compute how much of a run's wall-clock time was spent on training steps."""

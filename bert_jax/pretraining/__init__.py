"""Pretraining runs: config, phases, start, teacher, and plan."""

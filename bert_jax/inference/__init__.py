"""Run trained models on text."""

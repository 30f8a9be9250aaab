"""Scores of pretrained models on text and on minimal pairs of sentences."""

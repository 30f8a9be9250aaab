"""Compute a model's size, FLOPs and communication volume, and list chip specifications."""

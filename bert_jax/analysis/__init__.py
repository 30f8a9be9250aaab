"""Counts and costs: parameters, FLOPs, communication, and the capabilities of chips."""

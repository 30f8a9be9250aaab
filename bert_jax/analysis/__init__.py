"""Counts and costs: parameters, FLOPs, communication, and what chips can do."""

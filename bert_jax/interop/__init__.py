"""Weights and models of other frameworks, in and out."""

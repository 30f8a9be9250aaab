"""Hugging Face models: configs, weights, families, import and export."""

"""BERT in JAX: corpus preparation, pretraining and checkpoints, on one core or a TPU slice.

Importing this package imports no JAX, so that the command line answers at once.
"""

__version__ = "0.1.0"

"""Manage work directories: their files, their checkpoints, and the runs that own them."""

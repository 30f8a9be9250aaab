"""Pretrain encoders: configs, phases, teachers, runs and plans."""

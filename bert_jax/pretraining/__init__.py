"""Pretrain encoders, distill them from a teacher, and plan runs for other hardware."""

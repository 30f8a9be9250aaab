"""What fine-tuning learns from: files of examples, their features, and batches by length."""

"""Fine-tune the checkpoints of a pretraining run, either while it is in progress or later."""

"""Fine-tuning on the checkpoints of a pretraining run, while the run is in progress or later."""

"""Fine-tuning tasks whole: their files, what a model is asked of them, and how it is judged."""

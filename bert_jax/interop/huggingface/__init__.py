"""Read, write and run Hugging Face models, and describe the supported model families."""

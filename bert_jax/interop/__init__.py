"""Exchange models with other frameworks, and compare them."""

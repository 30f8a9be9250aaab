"""Define the encoder, its heads and the configs that describe them."""

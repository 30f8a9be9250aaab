"""The encoder, its heads, and the config that describes them."""

"""The encoder, its heads, and the one config that describes them."""

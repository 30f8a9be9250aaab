"""Looking inside a model: parameter and FLOP tables."""

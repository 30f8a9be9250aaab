"""Look inside a trained model: attention, vectors, guesses and attributions."""

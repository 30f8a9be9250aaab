"""Look inside a trained model: trace, probe and compare layers, and explain predictions."""

"""Count a model's parameters, FLOPs and communication, and list the specifications of chips."""

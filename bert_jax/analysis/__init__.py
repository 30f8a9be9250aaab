"""Count parameters, FLOPs and communication, and describe what chips can do."""

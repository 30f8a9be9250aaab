"""How it is learned: sharding, optimizer, step, loop, checkpoints, evaluation, reporting."""

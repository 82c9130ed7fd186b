"""From a preset to a trained model: a step, what it changes the weights by, checkpoints, the run folder, the loop."""

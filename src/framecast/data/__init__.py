"""Real files into one store of uint8 clips, and batches out of it."""

"""Drawing videos from a model: which positions a position needs, and in what order they can be drawn."""

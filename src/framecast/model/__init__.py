"""The Video Transformer: slice encoder, slice decoder, heads, and a model on disk."""

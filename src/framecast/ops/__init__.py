"""Pure functions of tensors: what the paper defines before it defines a network."""

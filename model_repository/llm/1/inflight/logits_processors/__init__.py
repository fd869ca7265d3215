"""Changes to a request's logits before a token is chosen. They need no torch: a batch gathers them as numpy arrays."""

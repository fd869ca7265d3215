"""Changes to a request's logits before a token is chosen. Torch-free: what they change is gathered for the batch."""

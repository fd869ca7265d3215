"""Which block of the KV cache belongs to whom. Torch-free; the tensors live in `inflight.model`."""

"""Assigns blocks of the KV cache to requests. It needs no torch: the tensors are in `inflight.model`."""

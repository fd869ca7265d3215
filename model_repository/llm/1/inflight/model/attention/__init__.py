"""Attention over a paged KV cache: the hook into transformers, the backends and the reference in plain torch."""

"""Attention over paged blocks: the hook into transformers, the backends, the reference in plain torch."""

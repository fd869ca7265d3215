"""Prompts with embeddings: reading them, and the forward pass over them."""

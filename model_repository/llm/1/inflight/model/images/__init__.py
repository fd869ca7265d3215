"""Prompts with images: reading them, and the forward pass over them."""

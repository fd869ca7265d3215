"""Sampling: chooses tokens from logits."""

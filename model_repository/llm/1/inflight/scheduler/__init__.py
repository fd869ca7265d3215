"""Decides which requests compute how many tokens in the next step. It needs no torch."""

"""Beam search: several continuations of a prompt are extended at once, and the most likely ones are kept."""

"""Speculative decoding: tokens are guessed before the model computes them, and several are confirmed in one step."""

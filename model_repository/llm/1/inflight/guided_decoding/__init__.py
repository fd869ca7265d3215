"""Guided decoding: every token keeps the output within a schema, a regular expression or a grammar. Needs no torch.

llguidance (https://github.com/guidance-ai/llguidance) parses constraints and says which tokens may come next.
"""

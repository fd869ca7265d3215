"""Conversion between text and tokens: chat template, incremental detokeniser, stop strings."""

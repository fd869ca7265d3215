"""Turns a Hugging Face folder into a model to serve: support checks, a dry run, optimisation and a self-check."""

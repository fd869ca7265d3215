"""Predicts how many tokens a request will generate, from the lengths of past outputs (`length_predictor`)."""

"""Checks that the engine is correct and fast on a GPU. Of our dependencies it needs only torch and transformers."""

"""Starts the server: what it needs is downloaded into the cache, then one process runs until it is stopped."""

"""Starts the server: downloads what it needs into the cache, then runs one process until it is stopped."""

"""The page at /ui: what the model does now, the last minutes, and a playground."""

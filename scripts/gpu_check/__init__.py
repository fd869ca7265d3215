"""Whether the engine is right and fast on a GPU; needs torch and transformers, and nothing else of what we install."""

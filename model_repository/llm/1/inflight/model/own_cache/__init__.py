"""Models that keep more than keys and values, by code of their own: each sequence has a cache of transformers' own."""

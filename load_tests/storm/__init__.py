"""A storm: very many requests of all kinds at once, honest and hostile, each checked."""

"""Every metric of the server: its name, its meaning, and the engine's number that it shows."""

"""What the engine is checked against, on any device: tiny models of all kinds, and attention in float64."""

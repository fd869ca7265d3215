"""References for checks of the engine on any device: tiny models of all kinds, and attention in float64."""

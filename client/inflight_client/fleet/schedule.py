"""How often a client looks after its servers."""

PROBE_SECONDS = 1.0
"""Between two probes of a server that is out of order, and the time limit of each."""
LOOK_SECONDS = 30.0
"""Between two look-ups of a DNS name."""

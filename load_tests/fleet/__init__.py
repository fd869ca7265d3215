"""`make bench-fleet`: what several servers behind one address are worth, and what happens when one of them ends."""

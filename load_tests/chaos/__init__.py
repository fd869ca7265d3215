"""Faults under load: what users notice of each, and how long it takes until answers are right again."""

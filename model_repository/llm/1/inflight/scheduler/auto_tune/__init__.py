"""Tunes the scheduler's settings while it serves (`auto_tune`)."""

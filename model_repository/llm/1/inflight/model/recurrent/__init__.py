"""Layers that keep a recurrent state per sequence: state-space models, linear attention and short convolutions."""

"""Checkpoints with quantized weights: while they are loaded, their weights become numbers of the model's dtype."""

"""What makes a model faster on an NVIDIA GPU."""

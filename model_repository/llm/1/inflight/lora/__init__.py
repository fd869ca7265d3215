"""LoRA adapters as requests name them."""

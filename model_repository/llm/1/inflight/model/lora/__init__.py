"""LoRA adapters: their files, and how they change a forward pass."""

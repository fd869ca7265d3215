"""The Triton side: turns tensors into requests and events into responses, and handles cancellation."""

"""Triton's side: tensors to requests, events to responses, cancellation."""

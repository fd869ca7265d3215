"""The memory of the KV cache: tensors, sizing, huge pages and host memory for swapped blocks."""

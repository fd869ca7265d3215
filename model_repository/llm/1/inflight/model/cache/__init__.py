"""The memory behind the KV cache: tensors, sizing, huge pages, host memory for swapped blocks."""

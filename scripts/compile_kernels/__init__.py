"""Compiles the kernels for GPUs on a machine without one, and checks what the compiler made of them."""

"""Faster serving on NVIDIA GPUs: attention kernels and captured CUDA graphs."""

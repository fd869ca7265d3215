"""Tensor parallel: one model divided over several processes, the ranks, each with a part of every divided layer."""

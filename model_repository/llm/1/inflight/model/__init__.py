"""The tensors: loading, ragged batches, attention over pages, sampling."""

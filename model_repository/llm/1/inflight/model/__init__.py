"""Everything that handles tensors: model loading, ragged batches, paged attention and sampling."""

"""From a Hugging Face folder to a model that can be served: support checks, probes, optimisation, self-check."""

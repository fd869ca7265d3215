"""Tells routers over ZMQ which prefixes are in the KV cache, as vLLM does. Nothing of it runs unless it is on."""

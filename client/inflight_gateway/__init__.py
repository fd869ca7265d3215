"""A gateway that offers OpenAI's HTTP API in front of an Inflight server."""

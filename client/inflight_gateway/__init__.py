"""A gateway that speaks OpenAI's HTTP API in front of an Inflight server."""

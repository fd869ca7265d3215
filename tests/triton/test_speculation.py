"""A server without drafts says so."""

import pytest

from inflight_client import Client, InvalidRequest
from scripts.launch.triton_server import TritonServer
from tests.cli.program import Program
from tests.triton.test_contract import generate


def test_without_speculation_drafts_are_refused_and_nothing_is_drafted(server: TritonServer) -> None:
    with Client(server.grpc_url) as client:
        with pytest.raises(InvalidRequest, match="draft_input_ids is given, but speculative_config is"):
            client.generate("A, B,", draft_input_ids=[1, 2])
        assert client.describe_model().max_draft_input_ids == 0
    perf = generate(server, text_input="A, B,", max_tokens=2, return_perf_metrics=True)
    assert (perf["total_draft_tokens"], perf["acceptance_rate"]) == (0, 0.0)
    done = Program(server.grpc_url).run("top", "--once", "--metrics-url", server.metrics_url)
    assert "\ndrafted_tokens_per_second -\nacceptance_rate -\n" in done.stdout

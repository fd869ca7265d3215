"""`make load`: Locust's users who stream over gRPC.

The other kinds are `locust -f` with load_tests/locust/http_user.py, infer_user.py or openai_user.py, or several of
them with commas in between.
"""

from load_tests.locust.grpc_user import GrpcUser

__all__ = ["GrpcUser"]

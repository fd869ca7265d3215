"""`make load`: Locust users that stream over gRPC.

For the other kinds of users, run `locust -f` with load_tests/locust/http_user.py, infer_user.py or openai_user.py, or
with several of them, separated by commas.
"""

from load_tests.locust.grpc_user import GrpcUser

__all__ = ["GrpcUser"]

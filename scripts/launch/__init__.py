"""Starts servers on loopback, with what they need, and stops them."""

import os

# Whoever starts a server may have channels of gRPC, whose handlers of fork() now and then abort the new process before
# it becomes the server: "Epoll1Poller encountered epoll_wait error: Bad file descriptor". gRPC reads this with its first
# channel.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

"""The transports: gRPC and HTTP, each for threads and for asyncio. All four have the same interface."""

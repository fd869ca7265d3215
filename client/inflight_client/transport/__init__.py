"""How requests reach the server: gRPC or HTTP, for threads or for asyncio. The four have one form."""

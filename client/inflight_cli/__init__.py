"""The command line `inflight`: prompts, chats, batches of prompts, and a look at the server."""

"""The command line `inflight`: answers prompts, chats and batches of prompts, and watches and checks a server."""

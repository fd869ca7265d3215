"""POST /v1/messages: Anthropic's API for the same answers as chats."""

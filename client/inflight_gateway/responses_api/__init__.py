"""POST /v1/responses: OpenAI's newer API for the same answers as chats."""

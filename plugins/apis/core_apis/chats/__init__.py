"""Several chats in one request (/v1/chat/completions/batch)."""

"""The Messages API, in Anthropic's shape: bodies as chat requests, and answers written from events."""

"""The Messages API of Anthropic: its bodies become chat requests, and its answers are written from answer events."""

"""The server under vLLM's older name."""

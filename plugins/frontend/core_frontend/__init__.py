"""Text in, text out: the `LLM` class, the asynchronous engine, and what both do to requests and outputs."""

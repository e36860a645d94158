"""The frontend: the `LLM` class, the asynchronous engine, and the processing of requests and outputs that both share."""

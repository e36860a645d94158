"""The result types of the `LLM` class and the servers, and the parameters of pooling."""

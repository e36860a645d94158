"""What users of the `LLM` class and the servers get back, and the parameters of pooling."""

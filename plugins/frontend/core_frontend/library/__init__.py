"""The engine as a Python library, under vLLM's names: arguments, engines, beam search, metrics."""

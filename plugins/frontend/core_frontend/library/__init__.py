"""The engine as a Python library, under the names that vLLM's users know: arguments, engines, beam search, metrics."""

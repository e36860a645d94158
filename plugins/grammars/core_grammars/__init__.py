"""Structured outputs on the client's side: from what a request asks to a compiled grammar. Torch-free."""

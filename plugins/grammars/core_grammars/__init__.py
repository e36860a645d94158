"""Structured outputs on the frontend's side: from a request's parameters to a compiled grammar. Torch-free."""

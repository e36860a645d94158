"""Changes of logits before sampling."""

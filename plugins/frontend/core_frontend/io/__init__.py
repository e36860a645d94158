"""IO processors: plugins that make prompts of the data of a request, and an answer of what the model computes for them."""

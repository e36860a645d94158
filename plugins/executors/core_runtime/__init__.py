"""The torch runtime: models, layers, weights and sampling behind the executor contract."""

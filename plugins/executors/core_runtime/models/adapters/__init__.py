"""Adapters of a model: from the modules that their files name to the layers that compute them."""

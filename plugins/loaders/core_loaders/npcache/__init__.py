"""The loader that caches torch's files as numpy files next to them."""

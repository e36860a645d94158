"""The loader that keeps torch's files as numpy files beside them."""

"""Preparation of request bodies: decoding, checks, templates and tokens, in this process or in a helper."""

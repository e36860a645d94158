"""Prompts computed by one engine and answered by another: KV pages that change hands for a ticket."""

"""Recorded traffic: bodies, tokens and receipts of some requests, for comparing engines later."""

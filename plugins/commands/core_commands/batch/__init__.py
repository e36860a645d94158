"""Batch files: one request a line in, one result a request out.

Owns: reading them, running them, and going on where a run has ended. Never does: answer a request (an endpoint does).
Called by: `core run-batch`.
"""

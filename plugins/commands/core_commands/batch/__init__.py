"""Batch files: one request per input line, one result per request.

Owns: reading and running them, and resuming an interrupted run. Never does: answer a request (an endpoint does).
Called by: `core run-batch`.
"""

"""A client of OpenAI's API: over HTTP, or in process to an own engine without a network.

Owns: endpoints, their answers, events of a stream. Never does: know a body's fields. Called by: the commands that use a
server: `chat`, `complete`, `run-batch` and `bench`.
"""

"""OpenAI's API as a client sees it: over HTTP, or of an engine of our own without a network.

Owns: endpoints, their answers, events of a stream. Never does: know a body's fields. Called by: the commands that
ask a server: `chat`, `complete`, `run-batch` and `bench`.
"""

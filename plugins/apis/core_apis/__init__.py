"""The HTTP server: OpenAI's protocol for an engine.

Owns: routes, request and response bodies, event streams, start and stop of the server process.
Never does: schedule, sample, detokenize, or import torch. Called by: `core serve`.
"""

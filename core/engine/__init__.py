"""The engine loop, the clients in process and over ZMQ, and the translation between what users ask for and what the engine
runs. Never does: schedule, compute, speak HTTP. Called by: the `LLM` class and the server.
"""

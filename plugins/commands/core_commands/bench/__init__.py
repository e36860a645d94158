"""Benchmarks of a server over its API, and of an engine in this process.

Owns: datasets, loads, figures and their reports. Never does: serve. Called by: `core bench`. Names of arguments and of
fields in results are vLLM's, so that results of both can be compared and read by the same scripts.
"""

"""Batches: files with a request a line, as OpenAI has them.

Owns: their form, which `core run-batch` shares, and the files and batches of a server. Never does: answer a request (the
routes of the server do). Called by: `core_apis.app`, the routes of files and batches, `core run-batch`.
"""

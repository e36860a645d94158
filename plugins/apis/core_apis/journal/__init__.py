"""The request journal: accepted requests and their generated tokens, on disk.

`Journal` in `journal.py` is the public interface; `docs/journal.md` states its guarantees.
"""

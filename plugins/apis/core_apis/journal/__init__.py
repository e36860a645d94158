"""The request journal: accepted requests and the tokens that they were given, on disk.

`Journal` in `journal.py` is what others use; `docs/journal.md` says what it promises.
"""

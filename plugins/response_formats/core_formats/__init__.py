"""How models write reasoning, text and tool calls: rows of data, and everything that follows from a row.

Owns: the rows, the parser that reads an answer by its row, finding the row of a checkpoint, the constraint that a row
gives to grammars. Never does: import torch, know requests or HTTP, sample. Called by: `core_apis`, `LLM`.
"""

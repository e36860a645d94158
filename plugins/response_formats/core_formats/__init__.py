"""Response formats: how models write reasoning, text and tool calls, as rows of data, and everything derived from a
row.

Owns: the rows, the parser of an answer by its row, the detection of a checkpoint's row, the grammar constraint of a
row. Never does: import torch, know requests or HTTP, sample. Called by: `core_apis`, `LLM`.
"""

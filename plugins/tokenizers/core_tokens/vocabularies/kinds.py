"""GGUF's token types, also used by sentencepiece files. Owns: the numbers. Called by: `core_tokens`."""

NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
BYTE = 6

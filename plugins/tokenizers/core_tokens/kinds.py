"""GGUF's types of tokens, which sentencepiece's files share. Owns: the numbers. Called by: `core_tokens`."""

NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
BYTE = 6

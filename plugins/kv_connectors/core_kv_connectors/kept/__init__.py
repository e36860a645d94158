"""KV blocks that outlive the engine: the file that its memory is, and the records of what it holds.

Owns: `file`, `connector`. Never does: copy a block, import torch. Called by: the KV memory, the connector `keep`.
"""

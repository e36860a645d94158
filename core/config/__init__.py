"""From arguments to a resolved configuration: resolve, select, explain, and the memory plan. Torch-free.

Owns: every rule that derives a value, and the reason given for it. Never does: read weights, open a device.
Called by: the command line, `LLM`, the server.
"""

from core.api.vllm_config import VllmConfig

__all__ = ["VllmConfig"]

"""An output of one of several prompts. Owns: its type. Called by: whoever runs prompts, and the writers."""

from __future__ import annotations

from core.api.outputs import RequestOutput

PromptOutput = tuple[int, RequestOutput]
"""(place of the prompt in the request, output)."""

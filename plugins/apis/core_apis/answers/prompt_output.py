"""An output of one of several prompts.

Owns: its type. Called by: everything that runs prompts, and the writers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from core_frontend.api.outputs import RequestOutput

PromptOutput = tuple[int, RequestOutput]
"""A pair: (place of the prompt in the request, output)."""

Outputs = AsyncGenerator[PromptOutput, None]
"""The outputs of all prompts of a request, as they come."""

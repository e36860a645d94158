"""Explanations of answers at the server's edge: who asks for one, and where it stands in the answer.

Owns: the header, what a body says about its sampling values, and the explanations of one HTTP request. Never does: explain
(`core.engine.explaining` does). Called by: the routes, `run_prompts`, the answer writers.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from core.api.config import ModelConfig
from core.api.explanation import Explanation
from core.api.outputs import RequestOutput
from core.engine.default_params import sampling_sources
from core.engine.request_terms import ExplainTerms
from core.serving.prepared import PreparedChat, PreparedCompletion

HEADER = "x-explain"
NO = ("", "0", "false", "no")
"""Values of the header that ask for nothing, in lower case."""

Told = Explanation | list[Explanation]
"""One for a request with one prompt; else one for each prompt, in their order."""


def wants_explanation(field: bool | None, headers: Mapping[str, str]) -> bool:
    """Whether an answer is to be explained. field: `explain` of the body, which wins over the header."""
    if field is not None:
        return field
    return headers.get(HEADER, "").strip().lower() not in NO


def explain_terms(prepared: PreparedChat | PreparedCompletion, model: ModelConfig) -> ExplainTerms | None:
    """What the explanation needs of a body; None when nobody asks for one."""
    if not prepared.body.explain:
        return None
    given = prepared.body.given_names()
    sources = sampling_sources(prepared.params, given, model)
    is_first = isinstance(prepared, PreparedChat) and prepared.first_turn
    return ExplainTerms(sources, is_first)


class Explanations:
    """Those of one HTTP request, as they come with the last outputs of its prompts."""

    def __init__(self) -> None:
        self._found: dict[int, Explanation] = {}

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Take the explanation out of an output, if it has one."""
        if output.explain is not None:
            self._found[prompt_index] = output.explain

    def told(self) -> Told | UnsetType:
        """For the answer; UNSET when there is nothing to tell."""
        found = [self._found[index] for index in sorted(self._found)]
        if not found:
            return UNSET
        return found[0] if len(found) == 1 else found

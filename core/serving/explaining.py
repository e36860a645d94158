"""Explanations of answers at the server's edge: who asks for one.

Owns: the header, and what a body says about its sampling values. Never does: explain (`core.engine.explaining` does).
Called by: the routes, `run_prompts`.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.api.config import ModelConfig
from core.engine.default_params import sampling_sources
from core.engine.request_terms import ExplainTerms
from core.serving.prepared import PreparedChat, PreparedCompletion

HEADER = "x-explain"
NO = ("", "0", "false", "no")
"""Values of the header that ask for nothing, in lower case."""

GUIDED = (
    "The chat template shows no tools; a system message describes them (row 'generic' of docs/response-formats.md)."
)
"""The words about tools that no template shows."""


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
    if not isinstance(prepared, PreparedChat):
        return ExplainTerms(sources)
    tools = GUIDED if prepared.guided else ""
    return ExplainTerms(sources, prepared.first_turn, tools=tools, control_text=prepared.prompts[0].control_text)

"""Explanations of answers at the server's edge: who asks for one.

Owns: the header, and what a body says about its sampling values. Never does: explain (`core_frontend.explaining` does).
Called by: the pipeline and the run of prompts, for requests that ask for one.
"""

from __future__ import annotations

from typing import Any

from core.api.config import ModelConfig
from core_apis.prepared import PreparedChat, PreparedCompletion
from core_frontend.default_params import sampling_sources
from core_frontend.request_terms import ExplainTerms

HEADER = "x-explain"
NO = ("", "0", "false", "no")
"""Values of the header that ask for nothing, in lower case."""

GUIDED = (
    "The chat template shows no tools; a system message describes them (row 'generic' of docs/response-formats.md)."
)
"""The words about tools that no template shows."""


def explain(body: Any, header: str) -> None:
    """Have an answer explained whose header asks for it; the field `explain` of the body wins, where the body can have one."""
    if getattr(body, "explain", False) is None:
        body.explain = header.strip().lower() not in NO


def explain_terms(prepared: PreparedChat | PreparedCompletion, model: ModelConfig) -> ExplainTerms:
    """The facts of a body that the explanation of its answer needs."""
    given = prepared.body.given_names()
    sources = sampling_sources(prepared.params, given, model)
    if not isinstance(prepared, PreparedChat):
        return ExplainTerms(sources)
    tools = GUIDED if prepared.guided else ""
    return ExplainTerms(sources, prepared.first_turn, tools=tools, control_text=prepared.prompts[0].control_text)

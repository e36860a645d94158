"""Requests for explanations of answers.

Owns: the header, and the sampling values that a body sets. Never does: explain (`core_frontend.explaining` does).
Called by: the pipeline and the run of prompts, for requests that want an explanation.
"""

from __future__ import annotations

from typing import Any

from core.api.config import ModelConfig
from core_apis.prepare.prepared import PreparedChat, PreparedCompletion
from core_frontend.prompts.default_params import sampling_sources
from core_frontend.request_terms import ExplainTerms

HEADER = "x-explain"
NO = ("", "0", "false", "no")
"""Values of the header, in lower case, that ask for no explanation."""

GUIDED = (
    "The chat template shows no tools; a system message describes them (row 'generic' of docs/response-formats.md)."
)
"""The sentence about tools that the chat template does not render."""


def explain(body: Any, header: str) -> None:
    """Turn on `body.explain` if the header asks for it; a value in the body takes precedence."""
    if getattr(body, "explain", False) is None:
        body.explain = header.strip().lower() not in NO


def explain_terms(prepared: PreparedChat | PreparedCompletion, model: ModelConfig) -> ExplainTerms:
    """Return the facts of a body that the explanation of its answer needs."""
    given = prepared.body.given_names()
    sources = sampling_sources(prepared.params, given, model)
    if not isinstance(prepared, PreparedChat):
        return ExplainTerms(sources)
    tools = GUIDED if prepared.guided else ""
    return ExplainTerms(sources, prepared.first_turn, tools=tools, control_text=prepared.prompts[0].control_text)

"""A response before its answer begins: the values that the request set, and the defaults.

Owns: that head. Never does: change it later (the writer does). Called by: the route.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from core_apis.prepare.prepared import PreparedResponse
from core_apis.protocol.response_objects import ResponseObject


def response_head(prepared: PreparedResponse, response_id: str, created: int) -> ResponseObject:
    """Return the initial response object of a request. created: seconds since the epoch."""
    body = prepared.body
    params = prepared.chat.params
    background = bool(body.background)
    reasoning = body.reasoning
    text = body.text
    return ResponseObject(
        id=response_id,
        created_at=created,
        status="queued" if background else "in_progress",
        model=prepared.chat.model,
        background=background,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={
            "effort": reasoning.effort if reasoning else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        },
        safety_identifier=body.safety_identifier,
        store=body.stored,
        temperature=params.temperature,
        text={
            "format": (text and text.format) or {"type": "text"},
            "verbosity": (text and text.verbosity) or "medium",
        },
        tool_choice=body.tool_choice or "auto",
        tools=cast(Any, msgspec.Raw(prepared.shown_tools)) if prepared.shown_tools else body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )

"""Arguments of engine methods besides keywords: ids of requests, engine arguments as an object, tags.

Owns: the checks of these, and the errors about them. Never does: know a method. Called by: `LLM`, `LLMEngine` and
`AsyncLLM`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from core.api.errors import ConfigError, RequestError


def one_id(request_id: Any) -> str:
    """Return the id of a request. Raises RequestError for anything but a string."""
    if not isinstance(request_id, str):
        raise RequestError(f"request_id is {request_id!r}; expected a text.", param="request_id")
    return request_id


def several_ids(request_id: Any) -> list[str]:
    """Return the ids of one or several requests. Raises RequestError for anything but strings."""
    if isinstance(request_id, str):
        return [request_id]
    if not isinstance(request_id, list | tuple | set | frozenset):
        raise RequestError(f"request_id is {request_id!r}; expected a text or a list of texts.", param="request_id")
    return [one_id(each) for each in request_id]


def keywords_of(engine_args: Any) -> dict[str, Any]:
    """Return the arguments of an `EngineArgs`. Raises ConfigError for anything else."""
    if not dataclasses.is_dataclass(engine_args) or isinstance(engine_args, type):
        raise ConfigError([f"engine_args is a {type(engine_args).__name__}; expected EngineArgs(model=..., ...)."])
    return dataclasses.asdict(engine_args)


def tags_of(tags: str | Sequence[str] | None) -> list[str] | None:
    """Return the tags of memory parts as a list; a string is one tag."""
    if tags is None:
        return None
    return [tags] if isinstance(tags, str) else list(tags)

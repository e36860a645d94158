"""Answers of /v1/models, /version, /health and /reset_prefix_cache. Owns: their Structs. Called by: their routes."""

from __future__ import annotations

import msgspec


class ModelCard(msgspec.Struct):
    """One name that the server answers to.

    created: seconds since the epoch.
    root:    what was loaded.
    response_format: the format by which answers are taken apart, and why that one.
    """

    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "core"
    parent: str | None = None
    response_format: str = ""


class ModelList(msgspec.Struct):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"


class VersionAnswer(msgspec.Struct):
    """The engine's version."""

    version: str


class ResetAnswer(msgspec.Struct):
    """The prefix cache is empty."""

    reset: bool


class HealthAnswer(msgspec.Struct):
    """What is wrong although requests are served. journal: why it takes no requests."""

    journal: str

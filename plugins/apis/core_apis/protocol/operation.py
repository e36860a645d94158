"""Answers of /v1/models, /health, /live, /version, /load, /server_info and the routes of operators.

Owns: their Structs. Called by: their routes.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from core_frontend.group.member import EngineState


class ModelCard(msgspec.Struct):
    """One name that the server answers to.

    created: seconds since the epoch.
    root:    what was loaded.
    parent:  name of the base model of an adapter.
    input_modalities: what prompts may hold: `text`, and `image`, `audio` or `video`.
    response_format: the format by which answers are parsed, and why that one.
    weight_version: of the weights, once they were replaced.
    adapter_digest: identity of an adapter: sha256 of its configuration and tensors.
    """

    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "core"
    parent: str | None = None
    input_modalities: tuple[str, ...] = ("text",)
    response_format: str = ""
    weight_version: str | msgspec.UnsetType = msgspec.UNSET
    adapter_digest: str | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct):
    """All names that the server answers to."""

    data: list[ModelCard]
    object: str = "list"


class EngineDeath(msgspec.Struct):
    """A death of the engine.

    time:  seconds since the epoch.
    cause: one word.
    """

    time: float
    cause: str


State = Literal["serving", "recovering", "draining", "paused", "sleeping", "updating weights"]


class HolderAnswer(msgspec.Struct, frozen=True):
    """One reason why requests wait.

    reason:    `pause`, `sleep`, `wait` (a call with mode `wait`), `update` or `memory` (a sleep that failed half way).
    holder:    `operator`, `a waiting call`, `a weight update` or `a failed sleep`. It names no client.
    since:     seconds since the epoch, if that is known.
    ends_with: what ends it.
    """

    reason: str
    holder: str
    ends_with: str
    since: float | msgspec.UnsetType = msgspec.UNSET


class HealthAnswer(msgspec.Struct):
    """The server serves, or will again.

    state:           `serving`: a request is computed. In all other states requests are accepted and wait: `recovering`:
                     the engine is being restarted; `draining`: current requests end first; `paused`, `sleeping`,
                     `updating weights`.
    engine_restarts: number of engines that were started because one had died.
    last_deaths:     the newest of these deaths, oldest first.
    journal:         why the request journal accepts no requests, if that is so.
    holders:         why requests wait, if they do and the engine runs.
    engines:         each engine of a group.
    audit_mismatches: rows that were not the same when they were computed again alone (--audit-share), if there were any.
    made_up:         that no answer means anything, with the KV connector `bench`.
    """

    state: State
    engine_restarts: int
    last_deaths: list[EngineDeath]
    journal: str | msgspec.UnsetType = msgspec.UNSET
    holders: list[HolderAnswer] | msgspec.UnsetType = msgspec.UNSET
    engines: list[EngineState] | msgspec.UnsetType = msgspec.UNSET
    audit_mismatches: int | msgspec.UnsetType = msgspec.UNSET
    made_up: str | msgspec.UnsetType = msgspec.UNSET


class VersionAnswer(msgspec.Struct):
    """The engine's version. weight_version: of the weights, once they were replaced."""

    version: str
    weight_version: str | msgspec.UnsetType = msgspec.UNSET


class ServerInfo(msgspec.Struct):
    """The server's version, names and configuration.

    served_names:  names of the model.
    configuration: as in `core config explain --json`.
    """

    version: str
    served_names: list[str]
    configuration: dict[str, Any]


class ResetAnswer(msgspec.Struct):
    """A cache is empty."""

    reset: bool


class AbortRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The requests to end. request_ids: empty: all."""

    request_ids: list[str] = []


class AbortAnswer(msgspec.Struct):
    """Requests ended. aborted: their number."""

    status: str
    aborted: int


class LoadAnswer(msgspec.Struct):
    """The load of this process. server_load: number of prompts that wait or run."""

    server_load: int


class ProfileAnswer(msgspec.Struct):
    """A profile began or ended. path: where traces go, or the trace that was written."""

    path: str


class ScaleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Have as many engines. drain_timeout: seconds in which requests of engines that go may end where they are."""

    new_data_parallel_size: int
    drain_timeout: float = 120.0


class ScalingAnswer(msgspec.Struct):
    """Whether the number of engines is being changed."""

    is_scaling_elastic_ep: bool


class StatusAnswer(msgspec.Struct):
    """The engine's state from now on. status: `paused`, `resumed`, `asleep`, `awake` or `running`."""

    status: str


class PausedAnswer(msgspec.Struct):
    """Whether requests wait because an operator or a call asked for that. state, holders: as in `HealthAnswer`."""

    is_paused: bool
    state: State
    holders: list[HolderAnswer] | msgspec.UnsetType = msgspec.UNSET


class SleepingAnswer(msgspec.Struct):
    """Whether the engine has released memory. state, holders: as in `HealthAnswer`."""

    is_sleeping: bool
    state: State
    holders: list[HolderAnswer] | msgspec.UnsetType = msgspec.UNSET

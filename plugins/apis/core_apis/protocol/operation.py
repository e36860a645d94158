"""Answers of /v1/models, /health, /version, /load, /server_info and what operators ask for.

Owns: their Structs. Called by: their routes.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ModelCard(msgspec.Struct):
    """One name that the server answers to.

    created: seconds since the epoch.
    root:    what was loaded.
    response_format: the format by which answers are taken apart, and why that one.
    weight_version: of the weights, once they were replaced.
    """

    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "core"
    parent: str | None = None
    response_format: str = ""
    weight_version: str | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"


class EngineDeath(msgspec.Struct):
    """A death of the engine.

    time:  seconds since the epoch.
    cause: in a word.
    """

    time: float
    cause: str


State = Literal["serving", "recovering", "draining", "paused", "sleeping", "updating weights"]


class HolderAnswer(msgspec.Struct, frozen=True):
    """One reason why requests wait.

    reason:    `pause`, `sleep`, `wait` (a call with mode `wait`), `update` or `memory` (a sleep that failed half way).
    holder:    `operator`, `a waiting call`, `a weight update` or `a failed sleep`. It names no client.
    since:     seconds since the epoch, where that is known.
    ends_with: what ends it.
    """

    reason: str
    holder: str
    ends_with: str
    since: float | msgspec.UnsetType = msgspec.UNSET


class HealthAnswer(msgspec.Struct):
    """The server is well.

    state:           `serving`: a request is computed. In all other states requests are taken and wait: `recovering`: the engine
                     is being started again; `draining`: requests that are there end first; `paused`, `sleeping`, `updating
                     weights`.
    engine_restarts: engines that were started because one had died.
    last_deaths:     the newest of these deaths, oldest first.
    journal:         why the request journal takes no requests, where that is so.
    holders:         why requests wait, where they do and the engine runs.
    """

    state: State
    engine_restarts: int
    last_deaths: list[EngineDeath]
    journal: str | msgspec.UnsetType = msgspec.UNSET
    holders: list[HolderAnswer] | msgspec.UnsetType = msgspec.UNSET


class VersionAnswer(msgspec.Struct):
    """The engine's version. weight_version: of the weights, once they were replaced."""

    version: str
    weight_version: str | msgspec.UnsetType = msgspec.UNSET


class ServerInfo(msgspec.Struct):
    """What runs here.

    served_names:  names of the model.
    configuration: as `core config explain --json` tells it.
    """

    version: str
    served_names: list[str]
    configuration: dict[str, Any]


class ResetAnswer(msgspec.Struct):
    """The prefix cache is empty."""

    reset: bool


class LoadAnswer(msgspec.Struct):
    """How busy this process is. server_load: prompts that wait or run."""

    server_load: int


class ProfileAnswer(msgspec.Struct):
    """A profile began or ended. path: where traces go, or the trace that was written."""

    path: str


class StatusAnswer(msgspec.Struct):
    """What the engine does from now on. status: `paused`, `resumed`, `asleep` or `awake`."""

    status: str


class PausedAnswer(msgspec.Struct):
    """Whether requests wait because somebody asked for that. state, holders: as of `HealthAnswer`."""

    is_paused: bool
    state: State
    holders: list[HolderAnswer] | msgspec.UnsetType = msgspec.UNSET


class SleepingAnswer(msgspec.Struct):
    """Whether the engine has given memory back. state, holders: as of `HealthAnswer`."""

    is_sleeping: bool
    state: State
    holders: list[HolderAnswer] | msgspec.UnsetType = msgspec.UNSET

"""The agreement between an API server and an engine: whether they serve the same model, and which settings the server
takes over.

Owns: `Agreement`, an engine's description of itself, what must agree, and whose value of each setting counts. Never
does: send. Called by: both ends.

The engine's configuration is the one that counts. The API server keeps the settings that it alone uses; an argument of an
engine that is also given to the API server must be equal.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.api.config import EngineConfig
from core.args.schema import flag_of, schema
from core.kv.fingerprint import weights_digest
from core_apis.remote.messages import Hello
from core_config.arguments.reach import is_for_engines
from core_config.explained import explained
from core_tokens.tokenizer_source import TokenizerSource

if TYPE_CHECKING:
    from core_config.resolve import Resolution

OWN_OF_MODEL = (
    "model",
    "served_names",
    "tokenizer",
    "allow_control_tokens",
    "generation",
    "overridden",
    "eos_token_ids",
)
OWN_OF_SCHEDULER = (
    "stream_interval",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "request_timeout_s",
    "max_num_reqs_per_key",
    "max_num_queued_reqs_per_key",
    "max_num_queued_tokens_per_key",
)
OF_MACHINES = frozenset({
    "device", "platform_config", "kv_cache_memory_bytes", "num_gpu_blocks_override", "gpu_memory_utilization", "max_num_seqs",
    "max_num_batched_tokens", "kv_offloading_size", "kv_offloading_disk_path", "kv_offloading_disk_size", "keep_weights",
    "prepared_weights", "keep_kv", "standby_engine", "use_tqdm_on_load", "kv_events_config", "engine_restarts",
    "engine_restart_window", "engine_restart_backoff", "engine_wedge_timeout", "engine_utility_timeout", "kv_transfer_config",
    "kv_peers", "kv_key_file",
})  # fmt: skip
"""Arguments that engines of one group may have otherwise on each machine."""

OWN = ("disable_log_stats", "stall_timeout_s", "structured_outputs", "log_config")
"""Fields of the configuration that the API server takes from its own arguments; it takes all others from the engine."""

TOLD_TO_CLIENTS = ("sleeps", "weight_transfer", "profiler")
"""Further fields, which decide what the API server offers."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "tekken.json",
)


class Agreement:
    """The engines that an API server accepts: one that fits its configuration, and others to which its requests can move.

    hello: of the first accepted engine, or of those that the server's command starts; None: there was none yet.
    resolution: of the API server.
    """

    def __init__(self, resolution: Resolution) -> None:
        self.hello: Hello | None = None
        self._resolution = resolution
        self._tokenizer = tokenizer_digest(resolution.manifest.tokenizer, resolution.engine)
        self._apart: frozenset[str] = frozenset()

    def begin_with(self, own: Hello) -> None:
        """Accept only engines that fit those of this command. own: what one of these would say."""
        self.hello, self._apart = own, OF_MACHINES

    def objection(self, other: Hello) -> str:
        """Return why this engine cannot be accepted, as sentences; empty if it can."""
        found = objection(self._resolution, self._tokenizer, other, self._apart)
        if not found and self.hello is not None:
            found = change(self.hello, other)
        return found

    def take(self, other: Hello) -> None:
        """Accept this engine; later ones must be able to replace it."""
        if self.hello is None:
            self.hello = other


def hello(resolution: Resolution, number: int = 0) -> Hello:
    """Return the description that an engine with this configuration sends. number: of those that its command starts."""
    engine = resolution.engine
    remote = resolution.server.remote
    return Hello(
        engine=engine,
        arguments=_plain({name: value for name, (value, _, _) in resolution.arguments.items() if _counts(name)}),
        tokenizer=tokenizer_digest(resolution.manifest.tokenizer, engine),
        weights=weights_digest(engine.model.model),
        numerics=resolution.numerics,
        byteorder=sys.byteorder,
        who=f"process {os.getpid()} of {platform.node() or 'a machine without a name'}",
        explained=explained(resolution),
        rank=engine.data_parallel_rank + number,
        group_size=1 if remote is None else remote.group_size,
    )


def objection(resolution: Resolution, tokenizer: str, other: Hello, apart: frozenset[str] = frozenset()) -> str:
    """Return why the API server with this configuration cannot use that engine, as sentences; empty if it can.

    tokenizer: digest of the API server's tokenizer. apart: arguments that may differ.
    """
    ours, theirs = resolution.engine.model, other.engine.model
    found: list[str] = []
    if other.byteorder != sys.byteorder:
        found.append(f"The engine's machine is {other.byteorder}-endian, the API server's is not.")
    if (ours.vocab_size, ours.hf_config) != (theirs.vocab_size, theirs.hf_config):
        found.append(f"The engine's model {theirs.model} has another configuration than the API server's {ours.model}.")
    elif other.tokenizer != tokenizer:
        found.append("The engine's tokenizer is another one than the API server's.")
    given = {name: value for name, value in resolution.given.items() if _counts(name)}
    for name in given:
        value, _, _ = resolution.arguments[name]
        if name in other.arguments and _plain(value) != other.arguments[name] and name not in apart:
            found.append(
                f"{flag_of(name)} is {_plain(value)!r} at the API server and {other.arguments[name]!r} at the engine; give "
                "both the same, or leave it out at the API server."
            )
    return " ".join(found)


def change(before: Hello, other: Hello) -> str:
    """Return why an engine cannot go on with the requests of another one, as a sentence; empty if it can."""
    if other.weights != before.weights:
        return f"Its weights (digest {other.weights}) are not those of {before.who} (digest {before.weights})."
    if other.numerics != before.numerics:
        return f"Its results depend on {other.numerics!r}, those of {before.who} on {before.numerics!r}."
    for name in TOLD_TO_CLIENTS:
        was, now = getattr(before.engine, name), getattr(other.engine, name)
        if was != now:
            return f"Its {name} is {now!r}; that of {before.who} is {was!r}."
    model, before_model = other.engine.model, before.engine.model
    for name in model.__struct_fields__:
        was, now = getattr(before_model, name), getattr(model, name)
        if was != now and name not in OWN_OF_MODEL:
            return f"Its {name} is {now!r}; that of {before.who} is {was!r}."
    return ""


def adopted(own: EngineConfig, engine: EngineConfig) -> EngineConfig:
    """Return the configuration that an API server uses. own: from its arguments. engine: of its engine."""
    return msgspec.structs.replace(
        engine,
        model=_with(engine.model, own.model, OWN_OF_MODEL),
        scheduler=_with(engine.scheduler, own.scheduler, OWN_OF_SCHEDULER),
        **{name: getattr(own, name) for name in OWN},
    )


def explained_for_api_server(resolution: Resolution, other: Hello) -> dict[str, Any]:
    """Return the configuration as plain values: the engine's, with the API server's own arguments."""
    own = explained(resolution)["arguments"]
    arguments = {
        name: row if _counts(name) else own.get(name, row) for name, row in other.explained["arguments"].items()
    }
    return other.explained | {"arguments": arguments}


def tokenizer_digest(source: TokenizerSource, engine: EngineConfig) -> str:
    """Return a digest of the files that decide how a text becomes tokens.

    Other files that transformers reads are ignored.
    """
    digest = hashlib.sha256(repr((engine.model.tokenizer_mode, engine.model.skip_tokenizer)).encode())
    digest.update(msgspec.msgpack.encode(source.vocabulary))
    for row in engine.plugins.table:
        if row.kind == "tokenizer":
            digest.update(repr((row.name, row.distribution, row.version, row.sha256)).encode())
    directory = engine.model.tokenizer or source.directory
    if directory is not None:
        for name in TOKENIZER_FILES:
            path = Path(directory, name)
            if path.is_file():
                digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def _counts(name: str) -> bool:
    field = schema().fields.get(name)
    return field is not None and is_for_engines(field)


def _with(theirs: Any, ours: Any, names: tuple[str, ...]) -> Any:
    return msgspec.structs.replace(theirs, **{name: getattr(ours, name) for name in names})


def _plain(value: Any) -> Any:
    """Return a value in the form that a message has it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))

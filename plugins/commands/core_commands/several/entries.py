"""The models of one command: what each is called, its arguments, and what it takes.

Owns: the reading of words and of the file of `--models`, and the resolution of each model. Never does: start anything.
Called by: `core_commands.several.launch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.api.adapters import AdaptersConfig
from core.api.errors import ConfigError, nearest
from core.args.arg import Given
from core.args.schema import flag_of, schema
from core_commands.several.words import OWN
from core_config.arguments.parser import Parsed
from core_config.resolve import Resolution, resolve
from core_config.rules.data_parallel import OF_ONE_SERVER

FRONT = (
    "host",
    "port",
    "uds",
    "config",
    "root_path",
    "middleware",
    "allowed_origins",
    "allowed_methods",
    "allowed_headers",
    "allow_credentials",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "ssl_ciphers",
    "enable_ssl_refresh",
)
"""Arguments of the address, which the models do not have."""
OF_ONE_MODEL = ("served_model_name", "served_model_name_file", "batch_directory", "record_traffic", *OF_ONE_SERVER)
"""Arguments that two models cannot share."""
NOT_HERE = (
    "headless",
    "data_parallel_address",
    "data_parallel_multi_port_external_lb",
    "data_parallel_rank",
    "nnodes",
    "node_rank",
    "api_server_count",
    "receipt_key",
)
"""Arguments of servers that are more than one process with engines of its own, or of which each model would need its own."""
MOST_MODELS = 64
LARGEST_FILE = 1 << 20
IN_FILE = ("pinned", "idle_timeout")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of this server.

    names: by which requests ask for it; the first is its own.
    adapters: names of those of its adapters that its arguments list.
    values: arguments of its server.
    awake_bytes: planned for weights, KV cache, workspace and what else is in memory while it computes.
    asleep_bytes: planned for what stays in memory while it sleeps: cached blocks in host memory.
    max_model_len: tokens of its longest request.
    pinned: whether it never gives its memory to others.
    idle_timeout: seconds without a request after which it gives its memory back; None: never by itself.
    """

    names: tuple[str, ...]
    values: Mapping[str, Any]
    awake_bytes: int
    asleep_bytes: int
    max_model_len: int
    pinned: bool = False
    idle_timeout: float | None = None
    adapters: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return its first name."""
        return self.names[0]


def read_entries(parsed: Parsed, problems: list[str]) -> list[ModelEntry]:
    """Return the models that a command line names. Sentences about problems are added to `problems`."""
    shared = {name: given.value for name, given in parsed.values.items() if name not in (*OWN, *FRONT)}
    timeout = parsed.values.get("model_idle_timeout")
    settings = _from_words(parsed) + _from_file(parsed.values.get("models"), problems)
    if not settings and not problems:
        problems.append("--models: names no model; expected a list with at least one, or models on the command line.")
    if len(settings) > MOST_MODELS:
        problems.append(f"{len(settings)} models; expected at most {MOST_MODELS} behind one address.")
        return []
    problems += _not_shared(shared, settings)
    if problems:
        return []
    entries = [_resolved({**shared, **each}, timeout, problems) for each in settings]
    found = [entry for entry in entries if entry is not None]
    _check_names(found, problems)
    return found


def _not_shared(shared: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each argument that models cannot share, or that is of a server with one model. settings: of each."""
    alone = [name for name in OF_ONE_MODEL if shared.get(name) is not None] if len(settings) > 1 else []
    listening = _listening(shared) if len(settings) > 1 else []
    for name in (*alone, *listening):
        yield f"{flag_of(name)}: two models cannot share it; give each its own in a file: --models FILE."
    for name in NOT_HERE:
        if any(each.get(name) is not None for each in (shared, *settings)):
            yield f"{flag_of(name)}: not with several models behind one address; serve that model by a command of its own."


def _listening(shared: Mapping[str, Any]) -> list[str]:
    """Return the arguments of all models that name an address at which engines give pages away."""
    found = []
    tcp = (shared.get("kv_connectors_config") or {}).get("tcp")
    if isinstance(tcp, Mapping) and tcp.get("listen") is not None:
        found.append("kv_connectors_config.tcp.listen")
    transfer = shared.get("kv_transfer_config") or {}
    if transfer.get("kv_role") == "kv_producer" or transfer.get("kv_port") is not None:
        found.append("kv_transfer_config")
    return found


def _from_words(parsed: Parsed) -> list[dict[str, Any]]:
    """Return the settings of the models that the command line names."""
    named = parsed.values.get("model")
    words = [*parsed.words, *([] if named is None else [named.value])]
    return [{"model": word} for word in words]


def _from_file(given: Given | None, problems: list[str]) -> list[dict[str, Any]]:
    """Return the settings in the file of `--models`."""
    if given is None:
        return []
    shown = f"--models {given.value}"
    document = _document(given.value, shown, problems)
    if document is None:
        return []
    if not isinstance(document, list) or not all(isinstance(each, dict) for each in document):
        problems.append(f"{shown}: expected a list of mappings, each with `model` and its arguments.")
        return []
    return [_settings(each, f"{shown}, model {number}", problems) for number, each in enumerate(document, 1)]


def _document(name: str, shown: str, problems: list[str]) -> Any:
    """Return the content of a YAML file; None, and a problem, when it cannot be read. shown: for problems."""
    import yaml

    try:
        path = Path(name).expanduser()
        if path.stat().st_size > LARGEST_FILE:
            problems.append(f"{shown}: has {path.stat().st_size} bytes; expected at most {LARGEST_FILE}.")
            return None
        return yaml.safe_load(path.read_text(encoding="utf-8")) or []
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{shown}: cannot be read: {' '.join(str(error).split())}.")
    except yaml.YAMLError as error:
        problems.append(f"{shown}: not valid YAML: {' '.join(str(error).split())}.")
    return None


def _settings(given: dict[Any, Any], place: str, problems: list[str]) -> dict[str, Any]:
    """Return the settings of one model in a file. place: for problems."""
    settings = {str(key).replace("-", "_"): value for key, value in given.items()}
    if not isinstance(settings.get("model"), str):
        problems.append(f"{place}: `model` is missing; expected a file, a directory or a hub name.")
    known = [*IN_FILE, *(name for name in schema().fields if name not in (*OWN, *FRONT))]
    unknown = [key for key in settings if key not in known]
    problems += [f"{place}: `{key}` is no argument of a model.{nearest(key, known)}" for key in unknown]
    return settings


def _resolved(settings: dict[str, Any], timeout: Given | None, problems: list[str]) -> ModelEntry | None:
    """Resolve one model. Its problems name it."""
    own = dict(settings)
    pinned, idle = own.pop("pinned", False), own.pop("idle_timeout", None if timeout is None else timeout.value)
    name = f"model {own['model']}"
    if not isinstance(pinned, bool):
        problems.append(f"{name}: `pinned` is {pinned!r}; expected true or false.")
    if idle is not None and (isinstance(idle, bool) or not isinstance(idle, int | float) or idle < 0):
        problems.append(f"{name}: `idle_timeout` is {idle!r}; expected seconds, or none.")
    if problems:
        return None
    try:
        resolution = resolve(own, context="serve")
    except ConfigError as error:
        problems += [f"{name}: {problem}" for problem in error.problems]
        return None
    names = resolution.engine.model.served_names
    return ModelEntry(
        names=tuple(names),
        values=own,
        awake_bytes=planned_bytes(resolution),
        asleep_bytes=resolution.engine.cache.host_bytes,
        max_model_len=resolution.engine.model.max_model_len,
        pinned=pinned,
        idle_timeout=idle,
        adapters=() if resolution.engine.adapters is None else adapter_names(resolution.engine.adapters),
    )


def adapter_names(adapters: AdaptersConfig) -> tuple[str, ...]:
    """Return the names that requests may ask for; the default adapter has none, since it answers for its model."""
    return tuple(each.name for each in adapters.modules if each.name != adapters.default)


def planned_bytes(resolution: Resolution) -> int:
    """Return the bytes that an engine takes while it is awake, cached blocks in host memory among them."""
    plan = resolution.memory
    parts = (plan.weights, plan.proposer, plan.kv, plan.workspace, plan.adapters, plan.tower, plan.tower_rows)
    return sum(parts) + resolution.engine.cache.host_bytes


def _check_names(entries: list[ModelEntry], problems: list[str]) -> None:
    """Find names that two models have."""
    owners: dict[str, ModelEntry] = {}
    for entry in entries:
        for name in entry.names:
            other = owners.setdefault(name, entry)
            if other is not entry:
                problems.append(
                    f"'{name}' is the name of two models ({other.values['model']}, {entry.values['model']}); give each "
                    "its own: `served_model_name` in the file of --models."
                )

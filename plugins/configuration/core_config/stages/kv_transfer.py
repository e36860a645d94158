"""KV connectors as the user names them: by `--kv-connectors`, and in vLLM's form by `--kv-transfer-config`.

Owns: what vLLM's names for local connectors, and their keys, mean here, and the parts of `multi`. Never does: choose a plugin,
or check its own arguments. Called by: the rule that settles the arguments of offloading, the stage that chooses connectors,
and `core_config.plugin_choices` (arguments of each).

vLLM's connectors to host memory and disk are arguments of this engine (`TIERS`), its example connector is `file`, and its
MultiConnector is the same list that `--kv-connectors` is. Keys that mean nothing here are rows of `foreign.txt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.args.schema import flag_of, schema
from core.plugin.kinds import normalize
from core_config.arguments import foreign
from core_config.arguments.convert import convert, describe
from core_config.stages.kv_roles import POLICY, role_arguments, unused, without_role
from core_config.stages.settings import Settings, underscored

TRANSFER = "kv_transfer_config"
NAME = f"{TRANSFER}.kv_connector"
OWN = "kv_connector_extra_config"
GIB = 1 << 30

TIERS: Mapping[str, str] = {
    "cpu_bytes_to_use": "kv_offloading_size",
    "cpu_bytes_to_use_per_rank": "kv_offloading_size",
    "disk_path": "kv_offloading_disk_path",
    "disk_capacity_bytes": "kv_offloading_disk_size",
    "eviction_policy": "kv_eviction",
}
"""Keys of vLLM's connectors to host memory and disk → the arguments that they are here."""
KEPT = ("store_threshold", "offload_prompt_only")
"""Keys of these connectors that are arguments of the connector `tiers`: which blocks are worth a page."""
OFFLOADING = ("offloadingconnector", "simplecpuoffloadconnector")
FILES = ("exampleconnector", "sharedstorageconnector")
SHARED = ("file", "shm")
"""The connectors with files that engines share."""
SEVERAL = ("multiconnector", "multi")
ALIASES: Mapping[str, str] = {
    "nixlconnector": "nixl",
    "nixlpullconnector": "nixl",
    "mooncakeconnector": "mooncake",
    "mooncakestoreconnector": "mooncake_store",
    "lmcacheconnectorv1": "lmcache",
    "lmcachempconnector": "lmcache",
    "decodebenchconnector": "bench",
}
"""vLLM's names for connectors → ours."""
RENAMED: Mapping[str, Mapping[str, str]] = {
    "lmcacheconnectorv1": {"lmcache.remote_url": "url"},
    "mooncakestoreconnector": {"master_server_address": "master", "metadata_server": "metadata"},
}
"""vLLM's name for a connector → its names for keys → ours."""
MP_SERVER: Mapping[str, Any] = {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 5555}
"""Keys of LMCacheMPConnector, which together are a URL, with vLLM's defaults."""
HANDS_ON = ("tcp", "nixl", "mooncake")
"""The connectors that have roles (`kv_roles`)."""


@dataclass(frozen=True, slots=True)
class NamedConnector:
    """A connector that the user names.

    plugin:    its name, as it was written.
    said:      the argument that names it, as the user writes it.
    arguments: its own arguments; None: those of `--kv-connectors-config`.
    flag:      what precedes the names of its arguments in messages.
    is_part:   whether it is a part of `multi`, several of which may have one name.
    """

    plugin: str
    said: str
    arguments: Mapping[str, Any] | None = None
    flag: str = ""
    is_part: bool = False


@dataclass(slots=True)
class NamedConnectors:
    """The named connectors, in order.

    settled:  values of arguments of this engine → (value, what the user wrote for it).
    problems: sentences.
    tiers:    own arguments of the connector `tiers`. tiers_flag: what precedes their names in messages.
    """

    connectors: list[NamedConnector] = field(default_factory=list)
    settled: dict[str, tuple[Any, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    tiers: dict[str, Any] = field(default_factory=dict)
    tiers_flag: str = ""

    def instances(self) -> list[tuple[str, NamedConnector]]:
        """Return each connector with a name of its own: the second one of a plugin is called `NAME#2`."""
        counts: dict[str, int] = {}
        found = []
        for connector in self.connectors:
            plugin = normalize(connector.plugin)
            counts[plugin] = counts.get(plugin, 0) + 1
            found.append((plugin if counts[plugin] == 1 else f"{plugin}#{counts[plugin]}", connector))
        return found


def named_connectors(settings: Settings) -> NamedConnectors:
    """Return the connectors that the user names, those of `--kv-connectors` first."""
    found = NamedConnectors()
    own = {normalize(key): value for key, value in settings["kv_connectors_config"].items()}
    for name in settings["kv_connectors"]:
        said = f"{flag_of('kv_connectors')} {name}"
        if normalize(name) == "multi":
            _read_parts(own.get("multi"), flag_of("kv_connectors_config.multi"), found)
        else:
            found.connectors.append(NamedConnector(name, said))
    if settings[TRANSFER]:
        _read(settings.mapping(TRANSFER), flag_of(TRANSFER), found)
    transfer = settings.mapping(TRANSFER) if settings[TRANSFER] else {}
    name = normalize(str(transfer.get("kv_connector")))
    name = ALIASES.get(name, name)
    if name not in HANDS_ON:
        found.problems += unused(settings)
    elif not found.problems:
        last = found.connectors[-1]
        always = name != HANDS_ON[0]  # tcp without a role shares blocks by name
        own = role_arguments(transfer, last.arguments or {}, flag_of(TRANSFER), settings, found.problems, always=always)
        found.connectors[-1] = replace(last, arguments=own)
    return found


def with_own_config(settings: Settings) -> set[str]:
    """Return the names whose arguments are in `--kv-connectors-config`: those of `--kv-connectors`."""
    return {normalize(name) for name in settings["kv_connectors"]}


@dataclass(frozen=True, slots=True)
class _Given:
    """A connector in vLLM's form.

    name:    vLLM's name for it.
    values:  its keys.
    flag:    what precedes the names of its keys in messages.
    is_part: whether it is a part of `multi`.
    """

    name: str
    values: Mapping[str, Any]
    flag: str
    is_part: bool

    @property
    def own(self) -> Any:
        """The arguments of the connector itself."""
        return self.values.get(OWN) or {}

    @property
    def prefix(self) -> str:
        """What precedes the names of its own arguments in messages."""
        return f"{self.flag}.{OWN}"

    @property
    def said(self) -> str:
        """The key that names it, as the user writes it."""
        return f"{self.flag}.kv_connector {self.name}"


def _read(values: Mapping[str, Any], flag: str, found: NamedConnectors, *, is_part: bool = False) -> None:
    """Read one connector in vLLM's form. flag: what precedes the names of its keys in messages."""
    name = values.get("kv_connector")
    if name is None:
        found.problems.append(f"{flag}: names no connector; expected {flag}.kv_connector NAME.")
        return
    given = _Given(name, values, flag, is_part)
    why = foreign.refused_value(NAME, name)
    if why:
        found.problems.append(f"{given.said}: {why.removesuffix('; ')}.")
    elif normalize(name) in OFFLOADING:
        _read_offloading(given, found)
    elif normalize(name) in FILES:
        _read_files(given, found)
    elif normalize(name) in SEVERAL:
        _read_parts(given.own, given.prefix, found)
    else:
        _read_other(given, found)


def _read_offloading(given: _Given, found: NamedConnectors) -> None:
    """Read one of vLLM's connectors to host memory and disk."""
    own = underscored(given.own)
    _read_tiers(own, given.said, given.prefix, found)
    found.problems += without_role(given.values, given.name, given.flag, loads=True)
    if given.values.get(POLICY) != "fail":
        return
    found.tiers["load_failure"] = "fail"
    found.tiers_flag = given.prefix
    if "disk_path" not in own:
        needed = f"needs {given.prefix}.disk_path DIRECTORY, since host memory is never waited for"
        found.problems.append(f"{given.flag}.{POLICY} fail: {needed}; or leave it out.")


def _read_files(given: _Given, found: NamedConnectors) -> None:
    """Read vLLM's example connector, which is `file` here."""
    own = underscored(given.own)
    renamed = {"directory" if key == "shared_storage_path" else key: value for key, value in own.items()}
    found.problems += without_role(given.values, given.name, given.flag, loads=True)
    if "directory" not in renamed:
        found.problems.append(f"{given.said}: needs {given.prefix}.shared_storage_path DIRECTORY.")
        return  # the connector itself would ask for the same, under its own name
    _add("file", _with_policy(renamed, given.values), given, found)


def _read_other(given: _Given, found: NamedConnectors) -> None:
    """Read a connector that is a plugin here, by its own name or vLLM's."""
    keys = RENAMED.get(normalize(given.name), {})
    own = {keys.get(key, key): value for key, value in given.own.items()}
    if normalize(given.name) == "lmcachempconnector" and "url" not in own:
        host, port = (own.pop(key, default) for key, default in MP_SERVER.items())
        own["url"] = f"{host if '://' in str(host) else f'tcp://{host}'}:{port}"
    name = ALIASES.get(normalize(given.name), given.name)
    loads = normalize(name) in SHARED
    if normalize(name) not in HANDS_ON or given.is_part:
        found.problems += without_role(given.values, name, given.flag, loads=loads)
    _add(name, _with_policy(own, given.values) if loads else own, given, found)


def _add(plugin: str, own: Mapping[str, Any], given: _Given, found: NamedConnectors) -> None:
    found.connectors.append(NamedConnector(plugin, given.said, own, given.prefix, given.is_part))


def _with_policy(own: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connector with slow storage, with what happens to a request whose pages do not come."""
    return {"load_failure": "fail", **own} if values.get(POLICY) == "fail" else dict(own)


def _read_parts(own: Any, flag: str, found: NamedConnectors) -> None:
    """Read the parts of `multi`. own: its arguments."""
    parts = own.get("connectors") if isinstance(own, Mapping) else None
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts or len(own) > 1:
        example = '[{"kv_connector": "file", "kv_connector_extra_config": {"directory": "DIRECTORY"}}, ...]'
        found.problems.append(f"{flag}: expected the key connectors alone, such as {flag}.connectors '{example}'.")
        return
    for number, part in enumerate(parts):
        place = f"{flag}.connectors[{number}]"
        try:
            values = convert(schema().fields[TRANSFER], part)
        except ValueError as error:
            found.problems.append(f"{place}: {error}.")
            continue
        _read(underscored(values or {}), place, found, is_part=True)


def _read_tiers(own: Mapping[str, Any], said: str, flag: str, found: NamedConnectors) -> None:
    """Read a connector to host memory and disk."""
    if not {"kv_offloading_size", "kv_offloading_disk_path"} & {TIERS.get(key) for key in own}:
        found.problems.append(f"{said}: needs {flag}.cpu_bytes_to_use BYTES or {flag}.disk_path DIRECTORY.")
    if "disk_capacity_bytes" in own and "disk_path" not in own:
        found.problems.append(f"{flag}.disk_capacity_bytes: needs {flag}.disk_path DIRECTORY.")
    for key, value in own.items():
        written = f"{flag}.{key} {value}"
        name = TIERS.get(key)
        row = foreign.table().get(f"{TRANSFER}.{OWN}.{key}")
        if name is not None:
            _settle(name, value, written, found)
        elif key in KEPT and found.tiers.get(key, value) != value:
            found.problems.append(
                f"{written}: {found.tiers_flag}.{key} {found.tiers[key]} says otherwise; leave one out."
            )
        elif key in KEPT:
            found.tiers[key] = value
            found.tiers_flag = flag
        elif row is not None:
            found.problems += [f"{flag}.{key} {part}: {why}." for _, part, why in foreign.refusals(row, value)]
        else:
            found.problems.append(f"{written}: no key of this connector; known: {', '.join((*TIERS, *KEPT))}.")


def _settle(name: str, value: Any, written: str, found: NamedConnectors) -> None:
    """Settle an argument by one of the keys in `TIERS`; sizes are bytes there, and GiB here."""
    declared = schema().fields[name]
    try:
        settled = convert(declared, float(value) / GIB if declared.base is float else value)
    except (TypeError, ValueError):
        expected = "a number of bytes above 0" if declared.base is float else describe(declared)
        found.problems.append(f"{written}: expected {expected}.")
        return
    other, by = found.settled.setdefault(name, (settled, written))
    if other != settled:
        found.problems.append(f"{written}: {by} says otherwise; leave one out.")

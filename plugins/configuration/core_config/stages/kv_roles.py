"""Roles in handoffs of KV between engines: arguments of this engine that are arguments of the connector `tcp`.

Owns: which of them mean something, and what they are for the connector. Never does: listen, or read a key file. Called by:
`core_config.stages.kv_transfer`.

Without a role `tcp` shares the blocks of all its peers by name. It has one as soon as anything is said that only a role uses,
and in a group of engines with kv_both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from core.args.schema import flag_of
from core_config.group_size import most_engines
from core_config.stages.settings import Settings

BOTH, CONSUMER = "kv_both", "kv_consumer"
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "kv_role": (BOTH,),
    "kv_ip": ("127.0.0.1",),
    "kv_port": (14579,),
    "kv_buffer_size": (1_000_000_000,),
    "kv_load_failure_policy": ("recompute",),
    "engine_id": (),
}
"""Keys of `--kv-transfer-config` about roles → values that mean nothing with other connectors."""
KEYS: Final[Mapping[str, str]] = {
    "engine_id": "engine_id",
    "kv_buffer_size": "buffer",
    "kv_load_failure_policy": "load_failure",
}
ARGUMENTS: Final[Mapping[str, str]] = {
    "kv_peers": "peers",
    "kv_key_file": "key_file",
    "kv_lease": "lease",
    "kv_rate_limit": "rate_limit",
}
"""Keys and arguments → arguments of the connector."""
POLICY: Final = "kv_load_failure_policy"
HOST, PORT = "127.0.0.1", 14579


def role_arguments(
    values: Mapping[str, Any],
    own: Mapping[str, Any],
    flag: str,
    settings: Settings,
    problems: list[str],
    *,
    always: bool = False,
) -> dict[str, Any]:
    """Return the own arguments of a connector with those of its role. values, flag: of the connector in vLLM's form.

    own: what the user gave as its own arguments. always: whether it has a role where nothing is said. Sentences about values
    that contradict each other are added to `problems`.
    """
    said = {name: settings[name] for name in ARGUMENTS if settings.user_set(name)}
    keys = _given(values)
    if not (always or said or _ask_for_a_role(keys, own, settings)):
        return dict(own)
    found = _arguments_of(keys, said, own, flag)
    for name, (value, written) in found.items():
        if name in own and own[name] != value:
            problems.append(f"{written}: the connector's own {name} {own[name]} says otherwise; leave one out.")
    return {**own, **{name: value for name, (value, _) in found.items()}}


def _ask_for_a_role(keys: Mapping[str, Any], own: Mapping[str, Any], settings: Settings) -> bool:
    """Whether keys in vLLM's form say anything that only a role uses. own: arguments of the connector itself."""
    if set(keys) - {"kv_role"} or keys.get("kv_role", BOTH) != BOTH:
        return True
    # The engines of a group hand requests to one another; of one engine kv_both alone says nothing, as vLLM's examples have it.
    is_group = most_engines(settings) > 1 and settings["data_parallel_rank"] is None
    return bool(keys) and is_group and {"listen", "peers"}.isdisjoint(own)


def _arguments_of(
    keys: Mapping[str, Any], said: Mapping[str, Any], own: Mapping[str, Any], flag: str
) -> dict[str, tuple[Any, str]]:
    """Return the arguments of a role: name → (value, what the user wrote for it)."""
    role = keys.get("kv_role", BOTH)
    found: dict[str, tuple[Any, str]] = {"role": (role, f"{flag}.kv_role {role}")}
    found |= {ARGUMENTS[name]: (value, f"{flag_of(name)} {value}") for name, value in said.items()}
    found |= {KEYS[name]: (keys[name], f"{flag}.{name} {keys[name]}") for name in KEYS if name in keys}
    if role != CONSUMER and ("listen" not in own or {"kv_ip", "kv_port"} & set(keys)):
        found["listen"] = _place(keys, flag)
    return found


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys about roles that ask for something: `recompute` is what the connector does anyway."""
    keys = {name: value for name in NEUTRAL if (value := values.get(name)) is not None}
    if keys.get(POLICY) in NEUTRAL[POLICY]:
        del keys[POLICY]
    return keys


def _place(keys: Mapping[str, Any], flag: str) -> tuple[str, str]:
    """Return the address at which consumers come, and how it was written."""
    host, port = keys.get("kv_ip", HOST), keys.get("kv_port", PORT)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return place, f"{flag}.kv_ip {host} and kv_port {port}"


def without_role(values: Mapping[str, Any], name: str, flag: str, *, loads: bool = False) -> Iterator[str]:
    """Yield a sentence for each key about roles that means nothing with the connector `name`.

    loads: whether it loads pages from slow storage, so that a load may fail.
    """
    for key, neutral in NEUTRAL.items():
        value = values.get(key)
        if value is not None and value not in neutral and not (loads and key == POLICY):
            only = "only the connectors tcp, nixl and mooncake hand blocks to other engines"
            yield f"{flag}.{key} {value}: {only}, not {name}; leave it out."


def unused(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each argument about roles where no connector uses it."""
    for name in ARGUMENTS:
        if settings.user_set(name):
            needed = "--kv-transfer-config.kv_connector tcp, nixl or mooncake, which hand blocks to other engines"
            yield f"{flag_of(name)}: needs {needed}."

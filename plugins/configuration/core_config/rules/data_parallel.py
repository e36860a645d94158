"""Rules about several engines with the same weights.

Owns: those rules, their order, and how many engines a command starts. Called by: the table (`core_config.rules`), and the
construction of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.args.schema import flag_of
from core_config.group_size import Values, most_engines
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn
from core_config.stages.kv_transfer import named_connectors

MULTI_PORT = "data_parallel_multi_port_external_lb"
OF_ONE_SERVER = ("request_journal", "kv_offloading_disk_path", "kv_events_config", "uds")
"""Arguments that name a place which servers cannot share."""
BOTH = "kv_both"
LAST_PORT = 65535


def num_engines(values: Values) -> int:
    """Return the number of engines that a command starts, now or later; 1 for an API server that starts none."""
    size, local = int(values["data_parallel_size"]), values["data_parallel_size_local"]
    if values["data_parallel_rank"] is not None:
        return 1
    if local is None:
        is_part = values["headless"] or values[MULTI_PORT]
        return max(size - first_rank(values), 1) if is_part else most_engines(values)
    return max(int(local), 1)


def first_rank(values: Values) -> int:
    """Return the rank of the first engine that a command starts."""
    rank = values["data_parallel_rank"]
    return int(values["data_parallel_start_rank"] or 0) if rank is None else int(rank)


def waits_for_others(values: Values) -> bool:
    """Whether a command is an API server that engines of other commands join."""
    local, is_alone = values["data_parallel_size_local"], values["data_parallel_rank"] is not None
    if local is None or any(values[name] for name in ("headless", "data_parallel_hybrid_lb", MULTI_PORT)):
        return False
    return bool(local == 0 or (local < values["data_parallel_size"] and not is_alone))


def ranks_are_of_the_group(facts: Facts) -> Findings:
    """The engines of a command are among all engines."""
    size, last = most_engines(facts), first_rank(facts) + num_engines(facts)
    if last > size:
        named = "--data-parallel-rank" if facts["data_parallel_rank"] is not None else "--data-parallel-start-rank"
        yield Problem(
            f"{named}: rank {last - 1} is not among the {size} of --data-parallel-size {size}; ranks begin with 0."
        )


def one_mode_is_named(facts: Facts) -> Findings:
    """The modes internal, hybrid and external exclude each other."""
    rank, local = facts["data_parallel_rank"], facts["data_parallel_size_local"]
    if facts[MULTI_PORT]:
        yield from _servers_have_ports(facts)
        return
    if facts["data_parallel_external_lb"] and rank is None:
        yield Problem(
            "--data-parallel-external-lb: needs --data-parallel-rank, the rank of the engine of this command."
        )
    if facts["data_parallel_hybrid_lb"]:
        if rank is not None:
            yield Problem(
                "--data-parallel-hybrid-lb and --data-parallel-rank: give one; the second is one engine a command."
            )
        if not local:
            yield Problem("--data-parallel-hybrid-lb: needs --data-parallel-size-local, the engines of this command.")
    elif rank is not None:
        if local is not None and local > 1:
            yield Problem(f"--data-parallel-size-local {local}: a command with --data-parallel-rank is one engine.")
        if facts["data_parallel_start_rank"] is not None:
            yield Problem("--data-parallel-start-rank and --data-parallel-rank: give the second alone.")
    elif local is not None and local > facts["data_parallel_size"]:
        yield Problem(
            f"--data-parallel-size-local {local}: more than all engines, --data-parallel-size {facts['data_parallel_size']}."
        )


def _servers_have_ports(facts: Facts) -> Findings:
    """Each server of a command has a port, and no place that another one uses."""
    if facts.context == "llm":
        yield Problem("data_parallel_multi_port_external_lb: only `core serve` starts servers; leave it out.")
    for name in ("headless", "data_parallel_hybrid_lb"):
        if facts[name]:
            yield Problem(f"{flag_of(name)} and {flag_of(MULTI_PORT)}: give one.")
    if facts["data_parallel_size_local"] == 0:
        yield Problem(f"{flag_of(MULTI_PORT)}: --data-parallel-size-local 0 leaves it no engine.")
    rank, start = facts["data_parallel_rank"], facts["data_parallel_start_rank"] or 0
    if rank is not None and rank < start:
        yield Problem(f"--data-parallel-rank {rank}: is below --data-parallel-start-rank {start}.")
    last = facts["port"] + num_engines(facts) - 1
    if facts["port"] == 0 or last > LAST_PORT:
        yield Problem(
            f"{flag_of(MULTI_PORT)}: needs --port, the first of {num_engines(facts)} ports up to {LAST_PORT}."
        )
    for name in OF_ONE_SERVER:
        if facts[name]:
            yield Problem(
                f"{flag_of(name)}: each server needs one of its own; leave out {flag_of(MULTI_PORT)}, and start one command "
                "for each engine, with --data-parallel-rank."
            )


def groups_have_one_api_server(facts: Facts) -> Findings:
    """Ranks of the API server's own engines are the first ones, and engines alone are behind no load balancer."""
    if facts["data_parallel_hybrid_lb"] or facts["data_parallel_external_lb"]:
        if facts.is_headless:
            yield Problem(
                "--headless: an engine alone has no address; leave it out with --data-parallel-hybrid-lb and "
                "--data-parallel-external-lb."
            )
    elif facts.is_headless or facts[MULTI_PORT]:
        return
    elif facts.is_api_server and facts["data_parallel_rank"] is not None:
        yield Problem(
            "--data-parallel-rank: an API server with --data-parallel-size-local 0 is no engine; leave it out."
        )
    elif facts["data_parallel_start_rank"]:
        yield Problem(
            f"--data-parallel-start-rank {facts['data_parallel_start_rank']}: the engines of the API server's own command have "
            "the first ranks; give it to the engines of other commands, beside --headless, or add --data-parallel-hybrid-lb "
            "where each command has an address of its own."
        )


def groups_share_out_processors(facts: Facts) -> Findings:
    """A command starts several engines on processors only."""
    device = None if facts.device is None else facts.device.name
    if device not in (None, "cpu") and num_engines(facts) > 1:
        asked = "data_parallel_size" if facts["data_parallel_size"] > 1 else "elastic_ep_max_dp_size"
        yield Problem(
            f"{flag_of(asked)} {facts[asked]}: a command starts one engine on '{device}'; "
            "start one for each device, with --data-parallel-rank and --device."
        )


def groups_hand_over_among_themselves(facts: Facts) -> Findings:
    """The engines of a group hand running requests to one another; every other role is of one engine with an address."""
    if most_engines(facts) <= 1 or (facts["data_parallel_rank"] is not None and not facts[MULTI_PORT]):
        return
    for connector in named_connectors(facts.settings).connectors:
        arguments = connector.arguments or {}
        problem = _why_no_group(facts, arguments) if arguments.get("role") else None
        if problem is not None:
            yield Problem(problem)


def _why_no_group(facts: Facts, arguments: Mapping[str, Any]) -> str | None:
    """Return why the engines of a command cannot share a role; None: they can. arguments: of the connector that has it."""
    size = most_engines(facts)
    if facts[MULTI_PORT] or facts["data_parallel_backend"] == "ray":
        return (
            f"--data-parallel-size {size}: an engine with a kv_role or --kv-peers has an address of its own, and those of "
            "several servers, or that Ray starts, do not know one another's; start one command for each engine, with "
            "--data-parallel-rank."
        )
    apart = "start one command for each engine, with --data-parallel-rank"
    group = f"the engines of --data-parallel-size {size}"
    role, port = arguments["role"], str(arguments.get("listen", "")).rpartition(":")[2]
    if role != BOTH:
        return f"kv_role {role}: {group} hand requests to one another, which needs {BOTH}; {apart}."
    has_others = facts.is_headless or waits_for_others(facts)
    if has_others and not arguments.get("peers"):
        return (
            f"kv_role {role}: {group} that other commands start are reached at addresses of their own; name all of them "
            "with --kv-peers HOST:PORT, or leave kv_role out, so that running requests are computed again where they move."
        )
    if arguments.get("peers") and not has_others:
        return f"--kv-peers: {group} are one another's peers; leave it out, or {apart}."
    if arguments.get("load_failure") == "fail":
        return (
            f"kv_load_failure_policy fail: {group} compute again what they cannot hand over; leave it out, or {apart}."
        )
    if port.isdigit() and int(port) + num_engines(facts) - 1 > LAST_PORT:
        return f"kv_port {port}: {group} listen at {num_engines(facts)} ports from it on, up to {LAST_PORT}."
    return None


def logs_are_of_several(facts: Facts) -> Findings:
    """One line for all engines is a matter of several."""
    if facts["aggregate_engine_logging"] and num_engines(facts) == 1:
        yield Warn("--aggregate-engine-logging: no effect on one engine.")


def engines_come_and_go_in_one_command(facts: Facts) -> Findings:
    """A server whose number of engines changes starts and ends all of them itself."""
    size, most = facts["data_parallel_size"], facts["elastic_ep_max_dp_size"]
    if not facts["enable_elastic_ep"]:
        if most is not None:
            yield Warn(f"--elastic-ep-max-dp-size {most}: no effect without --enable-elastic-ep.")
        return
    if facts.context == "llm":
        yield Problem("enable_elastic_ep: only `core serve` can be told to scale; leave it out.")
        return
    names = "headless", "data_parallel_rank", "data_parallel_size_local", "data_parallel_hybrid_lb", MULTI_PORT
    apart = [flag_of(name) for name in names if facts[name] is not None and facts[name] is not False]
    if facts["data_parallel_backend"] == "ray":
        apart.append("--data-parallel-backend ray")
    if apart:
        yield Problem(
            f"--enable-elastic-ep: not with {apart[0]}, since one command starts and ends all of its engines; leave one of "
            "them out, and start or end a command for each engine."
        )
    elif most is None and size == 1:
        yield Problem("--enable-elastic-ep: give --elastic-ep-max-dp-size, the most engines that there may be.")
    elif most is not None and most < size:
        yield Problem(
            f"--elastic-ep-max-dp-size {most}: is below --data-parallel-size {size}, the engines at the start."
        )


def ray_starts_engines(facts: Facts) -> Findings:
    """Ray starts the engines of a server that are not its own."""
    if facts["data_parallel_backend"] != "ray" or facts["headless"]:
        return
    local, size = facts["data_parallel_size_local"], facts["data_parallel_size"]
    if facts.context == "llm":
        yield Problem("data_parallel_backend ray: only `core serve` has engines that Ray starts; leave it out.")
    for name in ("data_parallel_rank", "data_parallel_hybrid_lb", MULTI_PORT):
        if facts[name] is not None and facts[name] is not False:
            yield Problem(
                f"{flag_of(name)}: not with --data-parallel-backend ray, with which one command starts all engines."
            )
            return
    if local is None:
        yield Problem(
            "--data-parallel-backend ray: give --data-parallel-size-local, this command's own engines; 0: Ray starts all."
        )
    elif local >= size:
        yield Warn("--data-parallel-backend ray: no effect, since --data-parallel-size-local leaves Ray no engine.")


RULES: tuple[Rule, ...] = (
    Rule(ray_starts_engines),
    Rule(engines_come_and_go_in_one_command),
    Rule(one_mode_is_named),
    Rule(ranks_are_of_the_group),
    Rule(groups_have_one_api_server),
    Rule(logs_are_of_several),
    Rule(groups_hand_over_among_themselves),
    Rule(groups_share_out_processors, "platform"),
)

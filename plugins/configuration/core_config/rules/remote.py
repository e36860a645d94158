"""Rules about an API server and an engine that run as two commands.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.args.schema import flag_of, schema
from core_config.arguments.reach import is_for_api_servers
from core_config.rules.data_parallel import waits_for_others
from core_config.rules.ranks import num_nodes
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn

OF_MEETING = ("data_parallel_address", "data_parallel_rpc_port", "engine_key_file", "engine_connect_timeout")
"""Arguments that only control the connection between the two commands."""


def meeting_needs_two(facts: Facts) -> Findings:
    """Arguments about the connection have no effect on a server that starts all engines itself."""
    shared = ("engine_key_file", "engine_connect_timeout") if num_nodes(facts) > 1 else ()
    given = [flag_of(name) for name in OF_MEETING if facts.given(name) and name not in shared]
    if given and not facts.is_headless and not waits_for_others(facts):
        yield Warn(
            f"{', '.join(given)}: no effect here, since this server starts its engines itself; an API server that engines of "
            "other commands join has a smaller --data-parallel-size-local, an engine alone --headless."
        )


def api_servers_read_their_arguments(facts: Facts) -> Findings:
    """Arguments that only an API server reads have no effect on an engine server; both may share a file."""
    if not facts.is_headless:
        return
    given: list[str] = []
    shared: list[str] = []
    for name, field in schema().fields.items():
        if not (facts.given(name) and is_for_api_servers(field)):
            continue
        is_shared = facts.origin(name).startswith(("config file", "environment"))
        named = shared if is_shared else given
        named.append(flag_of(name))
    if given:
        yield Problem(
            f"{', '.join(given)}: only the API server reads this; give it to that command, "
            f"and leave it out beside {_alone(facts)}."
        )
    if shared:
        yield Warn(f"{', '.join(shared)}: no effect beside {_alone(facts)}: only the API server reads this.")


def _alone(facts: Facts) -> str:
    return "--headless" if facts["headless"] else f"--node-rank {facts['node_rank']}"


def api_servers_are_one_process(facts: Facts) -> Findings:
    """An engine server accepts exactly one API server."""
    if waits_for_others(facts) and facts["api_server_count"] > 1:
        yield Problem(
            f"--api-server-count {facts['api_server_count']}: an API server that engines of other commands join is one "
            "process; leave it out."
        )


RULES: tuple[Rule, ...] = (
    Rule(meeting_needs_two),
    Rule(api_servers_read_their_arguments),
    Rule(api_servers_are_one_process),
)

"""Rules about several engines with the same weights.

Owns: those rules, their order, and how many engines a command starts. Called by: the table (`core_config.rules`), and the
construction of the configuration.
"""

from __future__ import annotations

from typing import Any, Protocol

from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn


class Values(Protocol):
    """Arguments by name."""

    def __getitem__(self, name: str) -> Any: ...


def num_engines(values: Values) -> int:
    """Return the number of engines that a command starts behind its address."""
    if values["data_parallel_rank"] is not None:
        return 1
    if values["data_parallel_hybrid_lb"]:
        return int(values["data_parallel_size_local"] or 1)
    return int(values["data_parallel_size"])


def first_rank(values: Values) -> int:
    """Return the rank of the first engine that a command starts."""
    rank = values["data_parallel_rank"]
    return int(values["data_parallel_start_rank"] or 0) if rank is None else int(rank)


def ranks_are_of_the_group(facts: Facts) -> Findings:
    """The engines of a command are among all engines."""
    size, last = facts["data_parallel_size"], first_rank(facts) + num_engines(facts)
    if last > size:
        named = "--data-parallel-rank" if facts["data_parallel_rank"] is not None else "--data-parallel-start-rank"
        yield Problem(
            f"{named}: rank {last - 1} is not among the {size} of --data-parallel-size {size}; ranks begin with 0."
        )


def one_mode_is_named(facts: Facts) -> Findings:
    """The modes internal, hybrid and external exclude each other."""
    rank, local = facts["data_parallel_rank"], facts["data_parallel_size_local"]
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


def engines_are_on_one_machine(facts: Facts) -> Findings:
    """Engines behind one address are started by one command."""
    size, local = facts["data_parallel_size"], facts["data_parallel_size_local"]
    if size == 1 or facts["data_parallel_hybrid_lb"] or facts["data_parallel_rank"] is not None:
        return
    if facts.is_headless or facts.is_api_server or (local is not None and local < size) or first_rank(facts):
        yield Problem(
            f"--data-parallel-size {size}: engines of other commands do not join a group behind one address yet; start on each "
            "machine a server of its own, with --data-parallel-hybrid-lb, --data-parallel-size-local and "
            "--data-parallel-start-rank, and a load balancer before them."
        )


def groups_share_out_processors(facts: Facts) -> Findings:
    """A command starts several engines on processors only."""
    device = None if facts.device is None else facts.device.name
    if device not in (None, "cpu") and num_engines(facts) > 1:
        yield Problem(
            f"--data-parallel-size {facts['data_parallel_size']}: a command starts one engine on '{device}'; "
            "start one for each device, with --data-parallel-rank and --device."
        )


def logs_are_of_several(facts: Facts) -> Findings:
    """One line for all engines is a matter of several."""
    if facts["aggregate_engine_logging"] and num_engines(facts) == 1:
        yield Warn("--aggregate-engine-logging: no effect on one engine.")


RULES: tuple[Rule, ...] = (
    Rule(one_mode_is_named),
    Rule(ranks_are_of_the_group),
    Rule(engines_are_on_one_machine),
    Rule(logs_are_of_several),
    Rule(groups_share_out_processors, "platform"),
)

"""Rules about ranks on several hosts.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.api.errors import ConfigError
from core.args.schema import flag_of
from core_config.group_size import most_engines
from core_config.rules.ranks import LAUNCHED, asks_for_nodes, num_nodes, num_ranks
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn
from core_supervision.link.secured import is_loopback, read_secret

OF_NODES = ("node_rank", "master_addr", "master_port")


def nodes_share_out_ranks(facts: Facts) -> Findings:
    """Each node has equally many ranks, and sums over nodes keep the order of one host."""
    nodes, ranks, tensor = facts["nnodes"], num_ranks(facts), facts["tensor_parallel_size"]
    given = [flag_of(name) for name in OF_NODES if facts.given(name)]
    if facts["distributed_executor_backend"] in (LAUNCHED, "ray") and nodes == 1:
        return
    if nodes == 1:
        if facts["node_rank"]:
            yield Problem(f"--node-rank {facts['node_rank']}: is not among --nnodes 1; nodes are counted from 0.")
        elif given:
            yield Warn(f"{', '.join(given)}: no effect with --nnodes 1.")
        return
    if facts["node_rank"] >= nodes:
        yield Problem(f"--node-rank {facts['node_rank']}: is not among --nnodes {nodes}; nodes are counted from 0.")
    if ranks % nodes:
        yield Problem(
            f"--nnodes {nodes}: each node has equally many ranks, and --tensor-parallel-size times --pipeline-parallel-size is "
            f"{ranks}; give a multiple of {nodes}."
        )
        return
    own = ranks // nodes
    is_power = own & (own - 1) == 0
    if (tensor > own and (tensor % own or not is_power)) or (tensor <= own and own % tensor):
        yield Problem(
            f"--nnodes {nodes}: {own} ranks a node divide --tensor-parallel-size {tensor} unevenly; a node needs whole "
            "stages, or 1, 2, 4, 8, ... ranks of one stage."
        )


def nodes_prove_who_they_are(facts: Facts) -> Findings:
    """Nodes of other machines need a secret."""
    if facts["nnodes"] == 1 or facts["distributed_executor_backend"] in (LAUNCHED, "ray"):
        return  # the latter two hand on a key that is made at the start
    address, key_file = facts["master_addr"], facts["engine_key_file"]
    if key_file is not None:
        try:
            read_secret(key_file)
        except ConfigError as error:
            yield from map(Problem, error.problems)
    elif not is_loopback(address):
        yield Problem(
            f"--master-addr {address}: other machines reach it, so whoever does could pass for a rank and read all prompts; "
            "give all nodes the same --engine-key-file, or use 127.0.0.1."
        )


def nodes_have_one_engine(facts: Facts) -> Findings:
    """The nodes of an engine are no group of engines, and add with sockets of their own."""
    if num_nodes(facts) == 1:
        return
    asked = asks_for_nodes(facts)
    if most_engines(facts) > 1 or facts["data_parallel_size_local"] is not None:
        yield Problem(f"{asked}: not with several engines (--data-parallel-size) yet; leave one of them out.")
    if facts["disable_custom_all_reduce"]:
        yield Problem(
            f"--disable-custom-all-reduce: with {asked} ranks of several hosts would trust any process that reaches them, as "
            "gloo knows no keys; leave it out."
        )
    if facts["enable_eplb"]:
        yield Problem(f"--enable-eplb: not with {asked} yet; leave one of them out.")
    if facts["headless"] and not facts["node_rank"]:
        yield Problem(f"--headless: node 0 of {asked} answers requests; leave it out, or give --node-rank.")
    if facts["node_rank"] and facts.context == "llm" and facts["distributed_executor_backend"] != LAUNCHED:
        yield Problem(f"node_rank {facts['node_rank']}: only `core serve` computes for the engine of another node.")


def launchers_start_all_ranks(facts: Facts) -> Findings:
    """A launcher starts one process for each rank, and tells each its number."""
    if facts["distributed_executor_backend"] != LAUNCHED:
        return
    started, ranks = facts["nnodes"], num_ranks(facts)
    if not facts.given("node_rank") or not facts.given("nnodes"):
        yield Problem(
            "--distributed-executor-backend external_launcher: RANK and WORLD_SIZE are not set, so no launcher has started "
            "this process; start it with torchrun, or give mp, with which the engine starts all ranks itself."
        )
    elif started != ranks:
        yield Problem(
            f"--distributed-executor-backend external_launcher: WORLD_SIZE is {started}, and --tensor-parallel-size times "
            f"--pipeline-parallel-size is {ranks}; start as many processes as ranks: torchrun --nproc-per-node {ranks}."
        )
    elif started > 1 and not (facts.given("master_addr") and facts.given("master_port")):
        yield Problem(
            "--distributed-executor-backend external_launcher: MASTER_ADDR and MASTER_PORT are not set, so ranks cannot meet; "
            "torchrun sets both."
        )
    if facts.given("engine_key_file"):
        yield Warn(
            "--engine-key-file: no effect with external_launcher: rank 0 hands on a key that it makes at its start."
        )


def ray_starts_all_ranks(facts: Facts) -> Findings:
    """Ray starts every rank but the first, and hands on a key that is made at the start."""
    nsight = facts["ray_workers_use_nsight"]
    if facts["distributed_executor_backend"] != "ray":
        if nsight:
            yield Warn("--ray-workers-use-nsight: no effect without --distributed-executor-backend ray.")
        return
    if num_ranks(facts) == 1:
        yield Warn(
            "--distributed-executor-backend ray: no effect with one rank, which is computed in the engine's own process; give "
            "--tensor-parallel-size or --pipeline-parallel-size."
        )
    if facts["node_rank"]:
        yield Problem(f"--node-rank {facts['node_rank']}: Ray starts all nodes; leave it out.")
    if num_ranks(facts) > 1 and facts.given("engine_key_file"):
        yield Warn("--engine-key-file: no effect with Ray, which hands on a key that is made at the start.")


RULES: tuple[Rule, ...] = (
    Rule(launchers_start_all_ranks),
    Rule(ray_starts_all_ranks),
    Rule(nodes_share_out_ranks),
    Rule(nodes_prove_who_they_are),
    Rule(nodes_have_one_engine),
)

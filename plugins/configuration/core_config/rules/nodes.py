"""Rules about ranks on several hosts.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.api.errors import ConfigError
from core.args.schema import flag_of
from core_config.rules.ranks import num_ranks
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn
from core_supervision.link.secured import is_loopback, read_secret

OF_NODES = ("node_rank", "master_addr", "master_port")


def nodes_share_out_ranks(facts: Facts) -> Findings:
    """Each node has equally many ranks, and sums over nodes keep the order of one host."""
    nodes, ranks, tensor = facts["nnodes"], num_ranks(facts), facts["tensor_parallel_size"]
    given = [flag_of(name) for name in OF_NODES if facts.given(name)]
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
    if facts["nnodes"] == 1:
        return
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
    nodes = facts["nnodes"]
    if nodes == 1:
        return
    if facts["data_parallel_size"] > 1 or facts["data_parallel_size_local"] is not None:
        yield Problem(f"--nnodes {nodes}: not with several engines (--data-parallel-size) yet; leave one of them out.")
    if facts["disable_custom_all_reduce"]:
        yield Problem(
            f"--disable-custom-all-reduce: with --nnodes {nodes} ranks of several hosts would trust any process that reaches "
            "them, as gloo knows no keys; leave it out."
        )
    if facts["enable_eplb"]:
        yield Problem(f"--enable-eplb: not with --nnodes {nodes} yet; leave one of them out.")
    if facts["headless"] and not facts["node_rank"]:
        yield Problem(f"--headless: node 0 of --nnodes {nodes} answers requests; leave it out, or give --node-rank.")
    if facts["node_rank"] and facts.context == "llm":
        yield Problem(f"node_rank {facts['node_rank']}: only `core serve` computes for the engine of another node.")


RULES: tuple[Rule, ...] = (
    Rule(nodes_share_out_ranks),
    Rule(nodes_prove_who_they_are),
    Rule(nodes_have_one_engine),
)

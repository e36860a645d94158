"""Rules about ranks: sizes, nodes, replicas, executors.

Owns: those rules and their rows. Called by: the table (`core.config.rules`).
"""

from __future__ import annotations

import socket

from core.config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn

PIPELINE_EXECUTORS = (None, "mp", "ray", "external_launcher")
BUILT_IN_EXECUTORS = ("uni", "mp", "ray", "external_launcher")


def r12_devices(facts: Facts) -> Findings:
    """On one node every rank has a device; ranks on a host share its processors."""
    if facts.device is None or facts["nnodes"] > 1 or facts["distributed_executor_backend"] not in (None, "uni", "mp"):
        return
    ranks = facts.world * (facts["data_parallel_size_local"] or facts["data_parallel_size"])
    processors = facts.device.processors
    if processors and ranks > processors:
        yield Warn(
            f"{ranks} ranks (tensor, pipeline, context and replica sizes together) share {processors} processors; "
            "lower --tensor-parallel-size or another size."
        )
    elif not processors and ranks > facts.num_devices:
        yield Problem(
            f"{ranks} ranks (tensor, pipeline, context and replica sizes together) need as many devices; found: "
            f"{facts.num_devices}. Lower --tensor-parallel-size or another size, or use --nnodes."
        )


def r21_sharded_loras(facts: Facts) -> Findings:
    """Nothing to shard on one rank."""
    if facts["fully_sharded_loras"] and facts["tensor_parallel_size"] == 1:
        yield Warn("--fully-sharded-loras has no effect with --tensor-parallel-size 1.")


def r52_ray(facts: Facts) -> Findings:
    """The old switch is the new name."""
    if not facts.get("worker_use_ray"):
        return
    executor = facts["distributed_executor_backend"]
    if executor not in (None, "ray"):
        yield Problem(
            f"--worker-use-ray and --distributed-executor-backend {executor}: they name different executors; "
            "leave --worker-use-ray out."
        )
        return
    yield Derive("distributed_executor_backend", "ray", "worker_use_ray means the ray executor")
    yield Warn("--worker-use-ray is deprecated; write --distributed-executor-backend ray.")


def n13_pipeline(facts: Facts) -> Findings:
    """Stages need an executor that starts several workers; a class of its own says so itself."""
    executor, size = facts["distributed_executor_backend"], facts["pipeline_parallel_size"]
    if size > 1 and executor in BUILT_IN_EXECUTORS and executor not in PIPELINE_EXECUTORS:
        yield Problem(
            f"--pipeline-parallel-size {size}: --distributed-executor-backend {executor} runs one stage; "
            "choose mp, ray or external_launcher, or leave it out."
        )


def n19_decode_context(facts: Facts) -> Findings:
    """Decode context ranks are tensor ranks."""
    size, tensor = facts["decode_context_parallel_size"], facts["tensor_parallel_size"]
    if tensor % size:
        yield Problem(
            f"--decode-context-parallel-size {size}: does not divide --tensor-parallel-size {tensor}; choose a divisor."
        )


def n23_start_rank(facts: Facts) -> Findings:
    """A first rank on a node that also serves."""
    rank = facts["data_parallel_start_rank"]
    if rank is not None and not facts["headless"]:
        yield Derive("data_parallel_hybrid_lb", True, f"data_parallel_start_rank {rank} without headless")


def n21_hybrid(facts: Facts) -> Findings:
    """Balancing inside a node, by this server, and between nodes, by someone else."""
    if not facts["data_parallel_hybrid_lb"]:
        return
    what = "--data-parallel-hybrid-lb"
    if facts["headless"]:
        yield Problem(f"{what}: a --headless node has no server to balance with; leave one of them out.")
    if facts["data_parallel_external_lb"]:
        yield Problem(f"{what} and --data-parallel-external-lb exclude each other; leave one of them out.")
    if facts["data_parallel_size_local"] is None:
        yield Problem(f"{what}: needs --data-parallel-size-local, the replicas of this node.")


def n21_fallback(facts: Facts) -> Findings:
    """One replica here is balanced from outside; all of them here need nobody outside."""
    size, local = facts["data_parallel_size"], facts["data_parallel_size_local"]
    if not facts["data_parallel_hybrid_lb"] or facts["headless"] or facts["data_parallel_external_lb"]:
        return
    if local is not None and local == size:
        yield Derive("data_parallel_hybrid_lb", False, f"all {size} replicas are on this node", force=True)
        yield Warn(f"--data-parallel-hybrid-lb is off: all {size} replicas are on this node.")
    elif local == 1:
        yield Derive("data_parallel_hybrid_lb", False, "one replica on this node", force=True)
        yield Derive("data_parallel_external_lb", True, "hybrid balancing with one replica on this node", force=True)
        yield Warn("--data-parallel-hybrid-lb becomes --data-parallel-external-lb: this node has one replica.")


def n22_external(facts: Facts) -> Findings:
    """Someone outside chooses the replica, so each server has one and knows which."""
    if not facts["data_parallel_external_lb"]:
        return
    if facts["data_parallel_rank"] is None and facts["nnodes"] == 1:
        yield Problem("--data-parallel-external-lb: needs --data-parallel-rank, the rank of this replica.")
    local = facts["data_parallel_size_local"]
    if local not in (None, 1):
        yield Problem(f"--data-parallel-size-local {local}: with --data-parallel-external-lb a server has 1 replica.")


def n22_implied(facts: Facts) -> Findings:
    """A rank is given to one replica of several; rank 0 is a rank."""
    rank = facts["data_parallel_rank"]
    if facts.given("data_parallel_rank") and rank is not None:
        yield Derive("data_parallel_external_lb", True, f"data_parallel_rank {rank} is given")


def n24_nodes(facts: Facts) -> Findings:
    """Several nodes share the ranks evenly."""
    nodes, node, executor = facts["nnodes"], facts["node_rank"], facts["distributed_executor_backend"]
    if nodes == 1:
        return
    if executor not in (None, "mp"):
        yield Problem(f"--nnodes {nodes}: --distributed-executor-backend {executor} cannot span nodes so; choose mp.")
    ranks = facts.world * facts["data_parallel_size"]
    if ranks % nodes:
        yield Problem(
            f"--nnodes {nodes}: does not divide {ranks} ranks; change a parallel size or the number of nodes."
        )
    if node >= nodes:
        yield Problem(f"--node-rank {node}: expected 0 to {nodes - 1}, as --nnodes is {nodes}.")


def n24_rank(facts: Facts) -> Findings:
    """The first replica of a node, when a node has whole ones."""
    nodes, replicas = facts["nnodes"], facts["data_parallel_size"]
    ranks = facts.world * replicas
    if nodes > 1 and replicas > 1 and ranks % nodes == 0 and facts["node_rank"] < nodes:
        rank = facts["node_rank"] * (ranks // nodes) // facts.world
        yield Derive("data_parallel_rank", rank, f"node {facts['node_rank']} of {nodes}, {ranks // nodes} ranks each")


def n25_address(facts: Facts) -> Findings:
    """Where replicas find each other."""
    if facts["data_parallel_size"] == 1:
        return
    if facts["data_parallel_backend"] == "ray":
        yield Derive("data_parallel_address", own_address(), "this machine, with the ray backend")
    else:
        yield Derive("data_parallel_address", facts["master_addr"], "master_addr")
    local = facts["data_parallel_size_local"]
    if facts.given("data_parallel_rpc_port") and local in (None, facts["data_parallel_size"]) and facts["nnodes"] == 1:
        yield Warn("--data-parallel-rpc-port has no effect: all replicas are on this node.")


def n26_local(facts: Facts) -> Findings:
    """All replicas are here, unless each spans machines."""
    spanned = facts["data_parallel_backend"] == "ray" and facts["additional_config"].get("ray_packing") == "span"
    if facts["data_parallel_size_local"] is None:
        why = "a replica spans machines" if spanned else "all replicas are on this node"
        yield Derive("data_parallel_size_local", 1 if spanned else facts["data_parallel_size"], why)


def n44_synchronization(facts: Facts) -> Findings:
    """Replicas agree without the device while steps overlap."""
    if facts["disable_nccl_for_dp_synchronization"] is None:
        value = bool(facts["async_scheduling"])
        why = f"async_scheduling is {'on' if value else 'off'}"
        yield Derive("disable_nccl_for_dp_synchronization", value, why)


def n47_numa(facts: Facts) -> Findings:
    """A binding for each device."""
    binding = facts["numa_bind_cpus"]
    if not binding:
        return
    if facts.num_devices and len(binding) != facts.num_devices:
        yield Problem(
            f"--numa-bind-cpus has {len(binding)} entries for {facts.num_devices} visible devices; give one for each."
        )
    if facts["numa_bind_nodes"]:
        yield Warn("--numa-bind-nodes has no effect beside --numa-bind-cpus.")


def n50_executor(facts: Facts) -> Findings:
    """One rank runs in the engine's process, several in processes of their own where all have a device."""
    if facts.device is None or facts["distributed_executor_backend"] is not None:
        return
    world, room = facts.world, facts.device.processors or facts.num_devices
    if world == 1:
        yield Derive("distributed_executor_backend", "uni", "one rank")
    elif facts["nnodes"] > 1 or world <= room:
        yield Derive("distributed_executor_backend", "mp", f"{world} ranks")
    else:
        yield Problem(
            f"{world} ranks do not fit the {room} devices of this node; choose smaller sizes, --nnodes, or "
            "--distributed-executor-backend ray."
        )


def own_address() -> str:
    """The address that other machines see, by the route outwards; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
NODES = (*SIZES, "nnodes", "node_rank", "distributed_executor_backend", "data_parallel_rank")
HYBRID = ("data_parallel_hybrid_lb", "data_parallel_external_lb", "data_parallel_size_local", "headless")
LOCAL = ("data_parallel_size_local", "data_parallel_size", "data_parallel_backend", "additional_config")
ADDRESS = ("data_parallel_address", "data_parallel_rpc_port", "master_addr", "nnodes")
RANKS = (*SIZES, "data_parallel_size_local", "nnodes", "distributed_executor_backend")
RULES: tuple[Rule, ...] = (
    Rule("R21", ("fully_sharded_loras", "tensor_parallel_size"), "warning", r21_sharded_loras),
    Rule("R52", ("distributed_executor_backend",), "warning", r52_ray),
    Rule("N13", ("pipeline_parallel_size", "distributed_executor_backend"), "error", n13_pipeline),
    Rule("N19", ("decode_context_parallel_size", "tensor_parallel_size"), "error", n19_decode_context),
    Rule("N24", NODES, "error", n24_nodes),
    Rule("N24", NODES, "derived", n24_rank),
    Rule("N22", ("data_parallel_rank", "data_parallel_external_lb"), "derived", n22_implied),
    Rule("N23", ("data_parallel_start_rank", "headless", "data_parallel_hybrid_lb"), "derived", n23_start_rank),
    Rule("N21", HYBRID, "error", n21_hybrid),
    Rule("N21", (*HYBRID, "data_parallel_size"), "warning", n21_fallback),
    Rule("N22", (*HYBRID, "data_parallel_rank", "nnodes"), "error", n22_external),
    Rule("N26", LOCAL, "derived", n26_local),
    Rule("N25", (*LOCAL, *ADDRESS), "derived", n25_address),
    Rule("N44", ("disable_nccl_for_dp_synchronization", "async_scheduling"), "derived", n44_synchronization),
    Rule("R12", RANKS, "error", r12_devices, "platform"),
    Rule("R38", RANKS, "error", stage="platform", instead="R12, which says the same"),
    Rule("N47", ("numa_bind_cpus", "numa_bind_nodes"), "error", n47_numa, "platform"),
    Rule("N50", RANKS, "derived", n50_executor, "platform"),
)

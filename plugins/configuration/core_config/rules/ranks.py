"""Rules about ranks: several processes that compute one model.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.args.schema import flag_of
from core_config.experts import balance_keys, placement_of
from core_config.group_size import most_engines
from core_config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn

MOST_RANKS = 64

WHOLE = (
    "enable_prompt_embeds",
    "keep_kv",
    "keep_weights",
    "kv_sharing_fast_prefill",
    "prepared_weights",
    "profiler_config",
    "state_canary",
    "weight_transfer_config",
    "worker_extension_cls",
)
"""Arguments for what an executor with several ranks cannot do."""

PAGES = ("kv_connectors", "kv_offloading_disk_path", "kv_offloading_size", "kv_transfer_config")
"""Arguments for what keeps KV pages, in memory that ranks of one host see."""

SIZES = ("tensor_parallel_size", "pipeline_parallel_size")

DRAFTS_OF_RANK_0 = ("given", "ngram", "suffix")
"""Methods that draft from tokens alone, which rank 0 does for all."""


def num_ranks(facts: Facts) -> int:
    """Return the number of ranks."""
    tensor: int = facts["tensor_parallel_size"]
    stages: int = facts["pipeline_parallel_size"]
    return tensor * stages


LAUNCHED = "external_launcher"
"""The value of --distributed-executor-backend with which others start all ranks, as torchrun does."""


def num_nodes(facts: Facts) -> int:
    """Return the number of hosts, where each rank that Ray or a launcher has started alone counts as one."""
    backend, nodes = facts["distributed_executor_backend"], facts["nnodes"]
    if backend == LAUNCHED or (backend == "ray" and nodes == 1):
        return num_ranks(facts)
    return int(nodes)


def _asked(facts: Facts) -> str:
    """Return the arguments that ask for several ranks, with their values."""
    return " and ".join(f"{flag_of(name)} {facts[name]}" for name in SIZES if facts[name] > 1)


def extensions_are_of_one_engine(facts: Facts) -> Findings:
    """A method of the worker answers for one engine; of a group only one answer would come back."""
    if facts["worker_extension_cls"] is not None and most_engines(facts) > 1:
        yield Problem("--worker-extension-cls: serves one engine; leave it out, or --data-parallel-size.")


def ranks_run_on_mp(facts: Facts) -> Findings:
    """More than one rank is the executor `mp` or `ray`; one is computed in the engine's process, whatever it is called."""
    size, backend = num_ranks(facts), facts["distributed_executor_backend"]
    if size > 1 and backend == "uni":
        yield Problem(
            f"--distributed-executor-backend uni: it has one rank, not {_asked(facts)}; leave it out, or give mp."
        )
    if size == 1:
        return
    if size > MOST_RANKS:
        yield Problem(f"{_asked(facts)}: {size} ranks, expected at most {MOST_RANKS}; lower one of them.")
    for name in ("executor", "executor_config"):
        if facts.given(name):
            yield Problem(f"{flag_of(name)}: ranks are computed by the executor mp; leave it out, or the ranks.")
    own: dict[str, Any] = {
        "ranks": facts["tensor_parallel_size"],
        "stages": facts["pipeline_parallel_size"],
        "context": facts["decode_context_parallel_size"],
        "timeout_seconds": facts["distributed_timeout_seconds"],
        "communicator": "gloo" if facts["disable_custom_all_reduce"] else "native",
    }
    if num_nodes(facts) > 1:
        own |= _of_nodes(facts)
    placement = placement_of(facts.settings)
    if not placement.is_ordered:
        own |= {"placement": placement.strategy, "redundant_experts": placement.redundant}
    if placement.moves:
        keys = balance_keys(facts.settings)
        own |= {
            "balance_interval": keys["step_interval"],
            "balance_window": keys["window_size"],
            "balance_log_interval": keys["log_balancedness_interval"] if keys["log_balancedness"] else 0,
        }
    yield Derive("executor", "ray" if backend == "ray" else "mp", f"{size} ranks")
    yield Derive("executor_config", own, "from the arguments about ranks")


def asks_for_nodes(facts: Facts) -> str:
    """Return the argument because of which ranks are on several hosts, or treated as if they were."""
    backend = facts["distributed_executor_backend"]
    if backend == LAUNCHED or (backend == "ray" and facts["nnodes"] == 1):
        return f"--distributed-executor-backend {backend}"
    return f"--nnodes {facts['nnodes']}"


def _of_nodes(facts: Facts) -> dict[str, Any]:
    """Return the executor's arguments about hosts."""
    own: dict[str, Any] = {"nodes": num_nodes(facts), "join_seconds": facts["engine_connect_timeout"]}
    backend, key_file = facts["distributed_executor_backend"], facts["engine_key_file"]
    if backend == "ray":
        own |= {"spread": facts["nnodes"] > 1, "nsight": facts["ray_workers_use_nsight"]}
        names = {"address": "master_addr", "port": "master_port"}
        return own | {key: facts[name] for key, name in names.items() if facts.given(name)}
    own |= {"address": facts["master_addr"], "port": facts["master_port"]}
    if backend == LAUNCHED:
        return own | {"launched": True}
    return own | {"key_file": None if key_file is None else str(Path(key_file).expanduser().absolute())}


def one_rank_has_no_others(facts: Facts) -> Findings:
    """Arguments about what ranks exchange have no effect on one rank."""
    names = ("distributed_timeout_seconds", "disable_custom_all_reduce")
    given = [flag_of(name) for name in names if facts.given(name)]
    if given and num_ranks(facts) == 1:
        yield Warn(f"{', '.join(given)}: no effect with one rank.")


def ranks_lack_some_features(facts: Facts) -> Findings:
    """Some features need the whole model in one process."""
    if num_ranks(facts) == 1:
        return
    asked = _asked(facts)
    for name in WHOLE:
        if facts[name]:
            yield Problem(f"{flag_of(name)}: not with {asked} yet; leave one of them out.")
    if facts["enable_lora"] and facts["distributed_executor_backend"] == "ray":
        yield Problem("--enable-lora: not with --distributed-executor-backend ray yet; leave one of them out.")
    for name in PAGES:
        if facts[name] and num_nodes(facts) > 1:
            yield Problem(f"{flag_of(name)}: not with {asks_for_nodes(facts)} yet; leave one of them out.")
        if facts[name] and facts["decode_context_parallel_size"] > 1:
            # Two divisions of a block may have equal sizes, and a page's fingerprint does not tell them apart.
            yield Problem(f"{flag_of(name)}: not with --decode-context-parallel-size yet; leave one of them out.")
    if facts["pipeline_parallel_size"] > 1 and facts["kv_cache_dtype_skip_layers"]:
        yield Problem("--kv-cache-dtype-skip-layers: not with --pipeline-parallel-size yet; leave one of them out.")
    method = facts.speculative.get("method")
    if method is not None and method not in DRAFTS_OF_RANK_0:
        yield Problem(
            f"--speculative-config.method {method}: with {asked} drafts come from {' or '.join(DRAFTS_OF_RANK_0)} alone."
        )


def ranks_generate_text(facts: Facts) -> Findings:
    """Models that answer with vectors run on one rank."""
    if num_ranks(facts) > 1 and facts["runner"] == "pooling":
        yield Problem(f"--runner pooling: not with {_asked(facts)} yet; leave it out.")


def ranks_compute_on_processors(facts: Facts) -> Findings:
    """Several ranks compute on the processors of one host so far."""
    if num_ranks(facts) > 1 and facts.platform is not None and facts.platform.name != "cpu":
        yield Problem(f"{_asked(facts)}: ranks compute on --device cpu alone, not on {facts['device']}; leave it out.")


RULES: tuple[Rule, ...] = (
    Rule(extensions_are_of_one_engine),
    Rule(ranks_run_on_mp),
    Rule(one_rank_has_no_others),
    Rule(ranks_lack_some_features),
    Rule(ranks_generate_text),
    Rule(ranks_compute_on_processors, "model"),
)

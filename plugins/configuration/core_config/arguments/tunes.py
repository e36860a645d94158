"""Arguments whose values may make an engine faster without changing what it is for, one row each.

Owns: which values are worth a trial, why, and for which loads. Never does: measure, resolve, or know a model. Called by:
`core tune`.

Arguments about capacity for clients, security, order of users and logs are left out on purpose: faster is not better there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

GAPS: Final = ("itl", "tpot")
"""Goals about the time between two tokens."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of machine, model and load before anything is measured.

    device: type of the device, such as `cpu`. num_processors: usable ones.
    streams: limit of requests at once; None: unknown, since they arrive at a rate.
    prompt_tokens, answer_tokens: of the longest request, estimated.
    kv_tokens: room of the KV cache. has_states: whether layers keep a recurrent state.
    goals: limits in ms by metric.
    present: value of every argument as it is resolved without a trial.
    """

    device: str
    num_processors: int
    streams: int | None
    prompt_tokens: int
    answer_tokens: int
    kv_tokens: int
    has_states: bool
    goals: Mapping[str, float]
    present: Mapping[str, Any]

    @property
    def wanted_tokens(self) -> int:
        """Return the tokens that all streams together keep in the KV cache at most; a rate counts as 8 streams."""
        return (self.streams or 8) * (self.prompt_tokens + self.answer_tokens)


Check = Callable[[Situation], str]
"""Returns why an argument cannot help in a situation; empty where it may."""
ValueCheck = Callable[[Situation, Any], str]
"""Returns why a value cannot help in a situation; empty where it may."""


def always(situation: Situation) -> str:
    """Return nothing: the argument may help anywhere."""
    return ""


def under_pressure(situation: Situation) -> str:
    """Refuse a load that the KV cache has room for."""
    if situation.wanted_tokens > situation.kv_tokens:
        return ""
    return f"the load keeps at most {situation.wanted_tokens:,} tokens, and the KV cache has room for {situation.kv_tokens:,}"


def unquantized(situation: Situation) -> str:
    """Refuse checkpoints that are quantized, whose weights would be rounded twice."""
    return "" if situation.present["quantization"] is None else "the checkpoint is quantized already"


def with_states(situation: Situation) -> str:
    """Refuse models without recurrent layers."""
    return "" if situation.has_states else "no layer of the model keeps a state"


def on_gpus(situation: Situation) -> str:
    """Refuse processors."""
    return "" if situation.device != "cpu" else "it concerns GPUs"


def without_gap_goal(situation: Situation) -> str:
    """Refuse goals that tokens sent together would break."""
    limited = [name for name in GAPS if name in situation.goals]
    return f"tokens that are sent together break the goal {limited[0]}" if limited else ""


def with_gap_goal(situation: Situation) -> str:
    """Refuse loads without a limit for gaps between tokens."""
    return "" if any(name in situation.goals for name in GAPS) else "no goal limits the time between tokens"


def with_processors(count: int, streams: int) -> Check:
    """Return a check that asks for so many processors and streams."""

    def check(situation: Situation) -> str:
        if situation.num_processors < count:
            return f"it needs {count} processors, and there are {situation.num_processors}"
        if situation.streams is not None and situation.streams < streams:
            return f"it needs {streams} streams, and the load has {situation.streams}"
        return ""

    return check


def fewer_streams(situation: Situation, value: Any) -> str:
    """Refuse numbers of sequences that the load never reaches."""
    present = situation.present["max_num_seqs"]
    if situation.streams is None or situation.streams > min(value, present):
        return ""
    return f"the load has at most {situation.streams} requests at once"


def longer_steps(name: str) -> ValueCheck:
    """Return a check of budgets of prompt tokens that no step of the load uses up."""

    def check(situation: Situation, value: Any) -> str:
        most = (situation.streams or 1 << 20) * situation.prompt_tokens
        if most > min(value, situation.present[name]):
            return ""
        return f"all prompts at once are about {most:,} tokens"

    return check


def any_value(situation: Situation, value: Any) -> str:
    """Return nothing: each value may help."""
    return ""


@dataclass(frozen=True, slots=True)
class Tunable:
    """One argument.

    name: of the argument.
    helps: what it may improve: `ttft`, `itl`, `throughput`.
    why: the reason, a part of a sentence that follows "since".
    values: to try. factors: multiples of the present value to try, nearest first in each direction.
    goal_factors: multiples of the goal for gaps between tokens to try.
    needs: check of the situation. useless: check of one value.
    is_step: whether its values are prompt tokens for which streams wait.
    changes_weights: whether its values change what the model computes, whatever the numerics id says.
    """

    name: str
    helps: tuple[str, ...]
    why: str
    values: tuple[Any, ...] = ()
    factors: tuple[float, ...] = ()
    goal_factors: tuple[float, ...] = ()
    needs: Check = always
    useless: ValueCheck = any_value
    is_step: bool = False
    changes_weights: bool = False

    def values_in(self, situation: Situation) -> list[Any]:
        """Return the values to try in a situation, without the present one."""
        present = situation.present[self.name]
        found = list(self.values)
        if isinstance(present, int) and not isinstance(present, bool):
            found += [max(1, round(present * factor)) for factor in self.factors]
        limits = [situation.goals[name] for name in GAPS if name in situation.goals]
        found += [min(limits) * factor for factor in self.goal_factors if limits]
        return [value for place, value in enumerate(found) if value != present and value not in found[:place]]


TUNABLES: Final[tuple[Tunable, ...]] = (
    Tunable(
        "max_num_mixed_batched_tokens",
        ("ttft", "itl", "throughput"),
        "more prompt tokens beside streams end prompts sooner, and fewer let streams wait less",
        factors=(2, 4, 8, 0.5),
        useless=longer_steps("max_num_mixed_batched_tokens"),
        is_step=True,
    ),
    Tunable(
        "speculative_config",
        ("itl", "throughput"),
        "drafts from repeated text cost little, and each accepted one saves a step",
        values=({"method": "suffix"}, {"method": "ngram", "num_speculative_tokens": 4}),
    ),
    Tunable(
        "max_num_seqs",
        ("ttft", "itl", "throughput"),
        "fewer sequences in a step make each step shorter, and more of them share the reading of weights",
        factors=(0.5, 0.25, 2),
        useless=fewer_streams,
    ),
    Tunable(
        "max_num_batched_tokens",
        ("ttft", "throughput"),
        "longer steps share the reading of weights among more prompt tokens, and shorter ones fit caches",
        factors=(0.5, 2, 0.25),
        useless=longer_steps("max_num_batched_tokens"),
    ),
    Tunable(
        "async_scheduling",
        ("itl", "throughput"),
        "the next step is planned while this one runs, which pays where the processor that plans computes nothing",
        values=(True, False),
    ),
    Tunable(
        "max_stall_ms",
        ("itl",),
        "chunks of prompts get the size that fits the time between tokens",
        goal_factors=(1, 0.5),
        needs=with_gap_goal,
    ),
    Tunable(
        "queued_prompts_weight",
        ("ttft", "itl"),
        "it says how much prompts that queue up may delay streams",
        values=(8.0, 0.0),
    ),
    Tunable(
        "max_num_partial_prefills",
        ("ttft",),
        "several prompts advance together, so that short ones need not wait for a long one",
        values=(2, 4),
    ),
    Tunable(
        "block_size",
        ("itl", "throughput"),
        "larger blocks are fewer to manage, and smaller ones share more of a prefix",
        factors=(2, 4),
    ),
    Tunable(
        "enable_prefix_caching",
        ("ttft", "throughput"),
        "hashing blocks is wasted where prompts share no beginning",
        values=(True, False),
    ),
    Tunable(
        "prefix_caching_hash_algo",
        ("ttft",),
        "a cheaper hash finds the same blocks, since hits are checked against the tokens",
        values=("xxhash",),
    ),
    Tunable(
        "kv_cache_memory_bytes",
        ("ttft", "throughput"),
        "with more room fewer requests wait or are computed again",
        factors=(2, 4),
        needs=under_pressure,
    ),
    Tunable(
        "kv_eviction",
        ("ttft", "throughput"),
        "another choice of the blocks that give way keeps more of what comes back",
        values=("arc", "cost"),
        needs=under_pressure,
    ),
    Tunable(
        "kv_offloading_size",
        ("ttft", "throughput"),
        "blocks that leave the KV cache stay in host memory instead of being computed again",
        values=(2.0,),
        needs=under_pressure,
    ),
    Tunable(
        "stream_interval",
        ("throughput",),
        "tokens that are sent together cost fewer messages",
        values=(4,),
        needs=without_gap_goal,
    ),
    Tunable(
        "renderer_num_workers",
        ("ttft",),
        "prompts are tokenized beside one another",
        values=(2, 4),
        needs=with_processors(4, 16),
    ),
    Tunable(
        "api_server_count",
        ("ttft", "itl", "throughput"),
        "several processes write to many streams",
        values=(2,),
        needs=with_processors(8, 32),
    ),
    Tunable(
        "optimization_level",
        ("itl", "throughput"),
        "what no provider of kernels serves is compiled",
        values=(3,),
        needs=on_gpus,
    ),
    Tunable(
        "mamba_block_size",
        ("ttft",),
        "states are cached at closer or wider distances",
        values=(16, 256),
        needs=with_states,
    ),
    Tunable(
        "kv_cache_dtype",
        ("itl", "throughput"),
        "smaller keys and values are read faster, and more of them fit",
        values=("int8_per_token_head", "fp8"),
    ),
    Tunable(
        "quantization",
        ("ttft", "itl", "throughput"),
        "8-bit weights are half the bytes to read",
        values=("int8",),
        needs=unquantized,
        changes_weights=True,
    ),
)
"""The table, in the order in which arguments are tried: the likeliest first, those that change bits last."""

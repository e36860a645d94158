"""Numbers that are not implemented, each with what holds in its place.

Owns: those rows. Called by: the table (`core.config.rules`).
"""

from __future__ import annotations

from core.config.rules.rule import Rule


def _row(number: str, name: str, instead: str) -> Rule:
    return Rule(number, (name,) if name else (), "replaced", instead=instead)


RULES: tuple[Rule, ...] = (
    _row("R1", "max_num_batched_tokens", "N1 to N6: the budget follows from use and device"),
    _row("R2", "block_size", "a last block may be part-filled; N20 for context ranks"),
    _row("R5", "max_logprobs", "log probabilities work with LoRA"),
    _row("R9", "enable_prefix_caching", "there is one block manager, with prefix caching"),
    _row("R11", "max_logprobs", "grammar masks and log probabilities are independent; logprobs_mode decides"),
    _row("R14", "speculative_config", "as many blocks are reserved as the drafts need"),
    _row("R15", "cpu_offload_gb", "R39: weights and KV are separate reservations"),
    _row("R17", "", "prompt adapters are no longer an argument"),
    _row("R18", "", "scaling factors of LongLoRA are no longer an argument"),
    _row("R19", "model_loader_extra_config", "R54: the settings go to the loader, which checks them"),
    _row("R24", "", "prompt adapters are no longer an argument"),
    _row("R25", "max_cpu_loras", "R36: as max_loras"),
    _row("R27", "model_loader_extra_config", "R54: unknown keys are errors"),
    _row("R28", "", "several steps a round are gone: async_scheduling and stream_interval"),
    _row("R30", "block_size", "a platform proposes a block size like any value"),
    _row("R33", "kv_cache_dtype", "R3: a warning, as scales come from the checkpoint"),
    _row("R37", "enable_prefix_caching", "there is one block manager, with prefix caching"),
    _row("R41", "max_logprobs", "grammar masks and log probabilities are independent"),
    _row("R43", "disable_sliding_window", "R10: the cap is the window"),
    _row("R44", "hf_overrides", "rope_theta is a plain value of the model's configuration"),
    _row("R46", "", "the tokenizer pool is gone: renderer_num_workers"),
    _row("R47", "", "both arguments are gone: hf_overrides"),
    _row("R48", "speculative_config", "R23: running requests keep their drafts"),
    _row("R50", "enable_chunked_prefill", "a piece is what decoding leaves of the budget"),
    _row("R53", "", "preemption recomputes, nothing is swapped"),
    _row("R57", "", "prompt adapters are no longer an argument"),
    _row("R58", "speculative_config", "R6, R16: longer sequences go on without drafts"),
    _row("N11", "speculative_config", "draft_model is a method like any other: a speculative plugin"),
)

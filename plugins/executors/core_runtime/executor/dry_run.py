"""Dry run: build a model on a phantom device and run one step of every kind, to see which kernels it calls and with
what.

Owns: the set of steps that call different kernels. Never does: compute, sample a token, know who records the calls.
Called by: `core kernels build`, while a kernel provider records its calls; the count of a step's launches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from core.api.adapters import AdaptersConfig
from core.api.config import EngineConfig
from core.api.errors import UserError
from core.plugin.table import PluginTable
from core_runtime.contracts import BatchView, Loader
from core_runtime.executor.adapters.settings import placed_adapters
from core_runtime.executor.device import Device
from core_runtime.executor.drafts.instance import build_draft, own_config
from core_runtime.executor.instance import ModelInstance, build, share_cache
from core_runtime.executor.phantom import NOWHERE, PhantomLoader, PhantomRuntime
from core_runtime.executor.plugin_loading import load_plugin
from core_runtime.executor.reloading.checkpoint import open_checkpoint
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.operation_order import apply_order
from core_runtime.models.decoder import Decoder
from core_runtime.sampling.logprob_rows import LogprobRows
from core_runtime.specs.draft_config import draft_of
from core_runtime.specs.operation_order import order_of
from core_runtime.specs.weight_offload import without_offload

ROWS: Final = (1, 24, 48, 64, 96, 192)
"""Row counts at which kernels switch to another algorithm, or that lie between two such counts."""
LOGPROBS: Final = ((1, 1), (1, 2), (2, 1))
"""Rows and counts of logprobs: they decide which parts of their memory begin at a multiple of 16 bytes."""
Wrap = Callable[[Loader], Loader]
UNREAD: Final = (NotImplementedError, RuntimeError, TypeError)
"""What torch raises when somebody wants to know the values of a tensor without memory."""


class Step(NamedTuple):
    """A step in which all sequences have the same number of rows."""

    num_seqs: int
    query_len: int


def dry_run(config: EngineConfig, *, reads: bool = True) -> None:
    """Build the configured model and run one step of every kind.

    reads: whether weights may be read where their layout depends on their values, which takes as long as quantizing them.
    Raises PluginError or UserError if the model cannot be built, or if its calls depend on computed values.
    """
    try:
        _dry_run(config, reads)
    except UNREAD as error:
        said = str(error).splitlines()[0]
        raise UserError(
            f"model '{config.model.model}': what it launches depends on numbers that are known on a device alone ({said}); "
            "kernels can be compiled ahead without a model."
        ) from error


def _dry_run(config: EngineConfig, reads: bool) -> None:
    with torch.inference_mode():
        decoder, *drafts = phantom_decoders(config, reads=reads)
        for step in _steps(config):
            _run(decoder, view_of(step, config))
        if takes_trees(config):
            for step in (Step(1, config.limits.tokens), Step(min(ROWS[1], config.limits.sequences), 1)):
                view = view_of(step, config)
                _run(decoder, replace(view, tails=torch.zeros((step.num_seqs, 2), dtype=torch.int32, device=NOWHERE)))
        if config.adapters is not None:
            _run_adapted(decoder, config, config.adapters)
        for rows in sorted({min(rows, decoder.max_logits) for rows in ROWS}):
            chosen = torch.zeros(rows, dtype=torch.int64, device=NOWHERE)
            _sample(decoder.kernels, decoder.logits(chosen))
        for draft in drafts:
            _run_draft(draft, decoder, own_config(config))


def phantom_decoders(config: EngineConfig, *, reads: bool = True) -> list[Decoder]:
    """Build the configured model and its draft, if that is a model, with their cache, on a phantom device.

    reads: see `dry_run`.
    """
    plugins = PluginTable(config.plugins.table)
    # Nothing is computed.
    options = {"num_threads": 1}
    named = {name: load_plugin(config, plugins, "kernels", name, options=options) for name in config.plugins.kernels}
    apply_order(named, order_of(config), config.device.partition(":")[0])
    providers = list(named.values())
    platform = config.device.partition(":")[0]
    kernels = KernelSet(providers, platform)
    kernels.memory = NOWHERE
    device = Device(PhantomRuntime(kernels))
    decoders = [instance.model for instance in _built(config, plugins, device, reads)]
    return [decoder for decoder in decoders if isinstance(decoder, Decoder)]  # modules of transformers were refused


def _built(config: EngineConfig, plugins: PluginTable, device: Device, reads: bool) -> list[ModelInstance]:
    """Build the models with their cache."""
    if config.model.implementation == "transformers":
        raise UserError(
            f"model '{config.model.model}': its layers are those of transformers, which need a device that is there; "
            "kernels can be compiled ahead without a model."
        )

    def target(wrap: Wrap | None) -> ModelInstance:
        dtype = device.runtime.activation_dtype(config.model.dtype)
        # Where weights lie changes no kernel.
        return build(without_offload(config), open_checkpoint(config, plugins, dtype, wrap), device, plugins)

    models = [_read(target, reads=reads and config.plugins.quantization is not None)]
    draft = draft_of(config)
    if draft is not None and draft.spec.decoder is not None:
        # Without its values a draft is left out, and its kernels are compiled when they are first launched.
        with contextlib.nullcontext() if reads else contextlib.suppress(*UNREAD):
            models.append(
                _read(lambda wrap: build_draft(config, draft, models[0], device, plugins, wrap=wrap), reads=reads)
            )
    share_cache(models, config.cache, device)
    return models


def _read(make: Callable[[Wrap | None], ModelInstance], *, reads: bool) -> ModelInstance:
    """Make a model without a cache. make: its argument is that of `open_checkpoint`. Raises one of `UNREAD`.

    reads: whether weights may be read, one layer at a time, where the layout of quantized ones depends on their values.
    """
    try:
        return make(PhantomLoader)
    except UNREAD:
        if not reads:
            raise
        return make(None)


def _steps(config: EngineConfig) -> Iterator[Step]:
    """Yield the steps: decoding, one prompt, and many prompts."""
    limits = config.limits
    for rows in sorted({min(rows, limits.tokens) for rows in (*ROWS, limits.tokens)}):
        yield Step(1, rows)
        if rows <= limits.sequences:
            yield Step(rows, 1)


def takes_trees(config: EngineConfig) -> bool:
    """Whether all layers can verify trees of drafts, should the engine's drafts be some."""
    plugins = PluginTable(config.plugins.table)
    chosen = config.plugins.attention
    able = all(plugins.capabilities("attention", name).get("tree", False) for name in set(chosen.values()))
    return able and config.plugins.speculative is not None and "state" not in chosen


def _run_adapted(decoder: Decoder, config: EngineConfig, adapters: AdaptersConfig) -> None:
    """Run the steps once more, with an adapter of every layer."""
    placed = placed_adapters(adapters, config.model.dtype)
    placed.bind(decoder)
    for step in _steps(config):
        view = view_of(step, config)
        placed.begin([0], torch.zeros(view.num_tokens, dtype=torch.int32, device=NOWHERE))
        _run(decoder, view)
    placed.begin([], view.positions)


def _run_draft(draft: Decoder, target: Decoder, config: EngineConfig) -> None:
    """Run the passes of a draft model, and what brings it the target's hidden states. config: its own."""
    for step in _steps(config):
        _run(draft, view_of(step, config))
        if draft.draft_entry is not None:
            rows = step.num_seqs * step.query_len
            hidden = draft.workspace.buffer("hidden")
            draft.draft_entry.project(target.workspace.buffer("taps")[:rows], hidden[:rows])
            which = torch.zeros(rows, dtype=torch.int64, device=NOWHERE)
            draft.kernels.take_rows(hidden, which, draft.workspace.view("hidden", rows))
    if draft.draft_entry is not None:
        draft.draft_entry.mask(draft.workspace.buffer("hidden")[:1])
    for rows in sorted({min(rows, draft.max_logits) for rows in ROWS}):
        _sample(draft.kernels, draft.logits(torch.zeros(rows, dtype=torch.int64, device=NOWHERE)))


def _run(decoder: Decoder, view: BatchView) -> None:
    """Run the forward pass of a step."""
    metadata = [mixer.build(view) for mixer in decoder.mixers]
    token_ids = torch.zeros(view.num_tokens, dtype=torch.int64, device=NOWHERE)
    decoder.forward(token_ids, view.positions, metadata)


def view_of(step: Step, config: EngineConfig) -> BatchView:
    """Return a step as a recording of its size describes it: by its tensors alone."""
    num_seqs, query_len = step
    rows = num_seqs * query_len
    block_size = config.cache.block_size
    length = config.model.max_model_len
    tables = (num_seqs, -(-length // block_size))

    def made(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=NOWHERE)

    return BatchView(
        num_tokens=rows,
        num_seqs=num_seqs,
        block_size=block_size,
        max_query_len=query_len,
        max_seq_len=length,
        query_lens=[],
        seq_lens_list=[],
        cu_seqlens_q=made(num_seqs + 1, dtype=torch.int32),
        seq_lens=made(num_seqs, dtype=torch.int32),
        block_table=made(*tables, dtype=torch.int32),
        slot_mapping=made(rows, dtype=torch.int64),
        positions=made(rows, dtype=torch.int64),
    )


def _sample(kernels: KernelSet, logits: Tensor) -> None:
    """Call every kernel for sampling and logprobs on some rows of logits."""
    rows, vocab_size = logits.shape

    def made(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=logits.device)

    which, out, temperatures = made(rows), made(rows), made(rows, dtype=torch.float32)
    draw = (logits, which, made(rows, 5), temperatures, out)
    filters = (made(rows), made(rows, dtype=torch.float64), made(rows, dtype=torch.float32))
    masks = (made(rows, -(-vocab_size // 32), dtype=torch.int32), made(rows))
    for chosen in (None, filters):
        if kernels.race is not None:
            kernels.race(*draw, chosen)
        if kernels.masked_race is not None:
            kernels.masked_race(*draw, chosen, masks)
    if kernels.logprobs is None:
        return
    for num_rows, count in LOGPROBS:
        told = LogprobRows([0] * num_rows, [count] * num_rows)
        kernels.logprobs(logits, which, which, which, *told.arrays(made(told.num_words)))

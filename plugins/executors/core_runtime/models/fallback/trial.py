"""One forward pass without values that records a transformers model's attention calls and the matrices it multiplies.

Owns: the trial and the refusal of every option that paged attention does not support. Never does: read a weight.
Called by: the description, the loading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from core.api.errors import UserError
from core.api.specs import AttentionSpec
from core_runtime.models.fallback.attention import answer_with

NUM_TOKENS: Final = 5

READ: Final = {"scaling", "sliding_window", "softcap", "s_aux", "dropout", "is_causal"}
"""Options of an attention call that determine the result."""
NEUTRAL: Final = {
    "cache_position",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "past_key_values",
    "position_ids",
    "return_dict",
    "use_cache",
}
"""Arguments of attention functions that do not change what they compute."""


class CannotServe(Exception):
    """A feature of a layer that paged attention lacks. The message is the end of a sentence."""


@dataclass(slots=True)
class Trial:
    """The record of one trial.

    mixers: each call of attention.
    sinks: the parameter with the sinks of each call, or None.
    attention_modules: names of the modules that called.
    linears: names of the linear layers that were called, in order.
    hidden_size: size of a row that the model's body returns.
    vocab_size: number of logits in a row.
    embeds: whether the embedding looks rows up with `nn.Embedding`'s own code.
    """

    mixers: list[AttentionSpec] = field(default_factory=list)
    sinks: list[str | None] = field(default_factory=list)
    attention_modules: list[str] = field(default_factory=list)
    linears: list[str] = field(default_factory=list)
    hidden_size: int = 0
    vocab_size: int = 0
    embeds: bool = False


def body_of(model: nn.Module) -> nn.Module:
    """Return the model without its head. Raises UserError."""
    body = model.get_decoder()
    if body is model.get_output_embeddings():  # the head has the name that other models use for their body
        body = model.base_model
    if not isinstance(body, nn.Module) or body is model:
        raise UserError(f"{type(model).__name__} of transformers has no part without its head, which is needed")
    return body


def run_trial(model: nn.Module) -> Trial:
    """Call the model once on the meta device. Raises UserError with the reason why it cannot be served."""
    trial = Trial()
    names = {module: name for name, module in model.named_modules()}
    recorder = _Recorder(model, trial, names)
    for module in model.modules():
        module.core_calls = recorder
    label = f"{type(model).__name__} of transformers"
    try:
        with torch.no_grad(), _watched(model, trial, names):
            _call(model, trial)
    except CannotServe as reason:
        raise UserError(f"{label} cannot run on paged attention: {reason}.") from None
    except Exception as error:
        first = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"{label} cannot run on paged attention: a trial call without values failed "
            f"({type(error).__name__}: {first})."
        ) from error
    for module in names:
        del module.core_calls
    answer_with(model, recorder, trial.attention_modules)
    _check_calls(model, trial, label)
    return trial


def _call(model: nn.Module, trial: Trial) -> None:
    experts = getattr(model, "set_experts_implementation", None)
    before = getattr(model.config, "_experts_implementation", None)
    if experts is not None and before is not None:
        experts("batched_mm")  # the only one that never reads a value, which meta tensors do not have
    ids = torch.zeros(1, NUM_TOKENS, dtype=torch.int64, device="meta")
    positions = torch.arange(NUM_TOKENS, device="meta").unsqueeze(0)
    mask = torch.ones(1, NUM_TOKENS, dtype=torch.int64, device="meta")
    hidden: list[int] = []
    handle = body_of(model).register_forward_hook(lambda _, __, out: hidden.append(out[0].shape[-1]))
    try:
        out = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)
    finally:
        handle.remove()
        if experts is not None and before is not None:
            experts(before)
    if len(hidden) != 1:
        raise CannotServe(f"its body was called {len(hidden)} times, expected once")
    trial.hidden_size = hidden[0]
    trial.vocab_size = out.logits.shape[-1]


def _check_calls(model: nn.Module, trial: Trial, label: str) -> None:
    config: Any = model.config
    num_layers = getattr(config, "num_hidden_layers", None) or 1
    if len(trial.mixers) < num_layers:
        raise UserError(
            f"{label} cannot run on paged attention: only {len(trial.mixers)} of its {num_layers} layers go through "
            "transformers' attention interface; a row of the table of families or a `model` plugin could serve it."
        )


@contextmanager
def _watched(model: nn.Module, trial: Trial, names: dict[nn.Module, str]) -> Iterator[None]:
    """Record the linear layers that are called."""
    seen: set[str] = set()

    def called(module: nn.Module, *_: Any) -> None:
        name = names[module]
        if name not in seen:
            seen.add(name)
            trial.linears.append(name)

    handles = []
    for module in model.modules():
        if type(module) is nn.Linear:
            handles.append(module.register_forward_pre_hook(called))
    embedding = model.get_input_embeddings()
    before = nn.Embedding.forward

    try:
        with _lookups(embedding, trial):
            yield
    finally:
        for handle in handles:
            handle.remove()
        assert nn.Embedding.forward is before


class LookedUp(nn.Embedding):  # type: ignore[misc]
    """An embedding that records whether it looked up rows."""

    core_trial: Trial

    def forward(self, input: Tensor) -> Tensor:
        """Record the call, and look up the rows."""
        self.core_trial.embeds = True
        return super().forward(input)


@contextmanager
def _lookups(embedding: nn.Module, trial: Trial) -> Iterator[None]:
    """Record whether this embedding looks rows up with `nn.Embedding`'s code, below the code of its own class."""
    if not isinstance(embedding, nn.Embedding):
        yield
        return
    usual = type(embedding)
    embedding.__class__ = below(usual, LookedUp)
    embedding.core_trial = trial
    try:
        yield
    finally:
        del embedding.core_trial
        embedding.__class__ = usual


def below(usual: type[nn.Module], own: type[nn.Module]) -> type[nn.Module]:
    """Return a class like `usual` in which `own` replaces the torch class that both derive from."""
    bases = (own,) if issubclass(own, usual) else (usual, own)
    return type(usual.__name__, bases, {})


class _Recorder:
    """A recorder of attention calls. names: names of all modules."""

    def __init__(self, model: nn.Module, trial: Trial, names: dict[nn.Module, str]) -> None:
        self._trial = trial
        self._names = names
        self._parameters = {name for name, _ in model.named_parameters()}

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, given: dict[str, Any]
    ) -> Tensor:
        """Record a call and return zeros, see `Calls`."""
        name = self._names[module]
        try:
            spec = _spec(query, key, value, mask, given, module)
            sinks = given.get("s_aux")
            self._trial.sinks.append(None if sinks is None else self._sinks(name, module, sinks))
        except CannotServe as reason:
            raise CannotServe(f"{name} {reason}") from None
        self._trial.mixers.append(spec)
        if name not in self._trial.attention_modules:
            self._trial.attention_modules.append(name)
        _, heads, length, _ = query.shape
        return query.new_zeros(1, length, heads, value.shape[-1])

    def _sinks(self, name: str, module: nn.Module, sinks: Tensor) -> str:
        """Return the name of the module's parameter that was passed as sinks."""
        for own, parameter in module.named_parameters(recurse=False):
            if parameter is sinks:
                return f"{name}.{own}"
        raise CannotServe("gives sinks that are no parameter of its own")


def _spec(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, given: dict[str, Any], module: nn.Module
) -> AttentionSpec:
    """Return the spec of one call. Raises CannotServe."""
    _check_given(given, module)
    scale = given.get("scaling")
    cap = given.get("softcap")
    batch, heads, length, size = query.shape
    _, kv_heads, num_keys, key_size = key.shape
    is_step = (batch, length, num_keys) == (1, NUM_TOKENS, NUM_TOKENS)
    if not is_step or value.shape[1:3] != key.shape[1:3]:
        raise CannotServe("gives attention other tokens than those of the step")
    if key_size != size or heads % kv_heads:
        raise CannotServe("has queries and keys that do not fit")
    window = _window(mask, given.get("sliding_window"))
    scale = 1.0 / math.sqrt(size) if scale is None else float(scale)
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        head_size_v=value.shape[3],
        scale=scale,
        window=window,
        cap=None if not cap else float(cap),
        sinks=given.get("s_aux") is not None,
    )


def _window(mask: Any, told: int | None) -> int | None:
    """Return the window of a call from its mask. An explicit window in the arguments must not contradict it."""
    if mask is None:
        return None if told is None else int(told)
    if not hasattr(mask, "core_window"):
        raise CannotServe("has a mask of its own")
    seen: int | None = mask.core_window
    if seen == -1:
        raise CannotServe("has a mask that is no causal window")
    return seen


def _check_given(given: dict[str, Any], module: nn.Module) -> None:
    """Raise CannotServe for an option of a call that the engine's attention does not have."""
    if given.get("dropout"):
        raise CannotServe("drops weights at random")
    causal = given.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    if causal is False:
        raise CannotServe("is not causal")
    for name, value in given.items():
        if name not in READ and name not in NEUTRAL and value is not None and value is not False:
            raise CannotServe(f"gives attention '{name}', which is not known")

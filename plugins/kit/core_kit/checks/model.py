"""Checks of model families: shapes, names, a whole model of random weights.

Owns: the checks. Never does: verify the family's mathematics; that needs a comparison with the original.
Called by: `core_kit.suite`.
"""

from __future__ import annotations

import pickle
from typing import Any

from core.api.errors import CheckpointError, UserError
from core_kit.case import Failure, Skipped, Subject
from core_runtime.models.families import family_for, plugin_names, plugin_spec
from core_runtime.specs.decoder_spec import DecoderSpec


def claims_its_own(subject: Subject) -> None:
    """It claims its own checkpoint, which the engine's table does not know."""
    facts = _own(subject).facts()
    if not subject.manifest.implements("core_claim"):
        raise Failure("a family needs core_claim: it is chosen by nothing else")
    if not subject.manifest.call("core_claim", facts=facts):
        raise Failure(f"it does not claim its own checkpoint ({facts.model_type}, {', '.join(facts.architectures)})")
    try:
        family = family_for(facts.config)
    except UserError:
        return
    raise Failure(f"the engine's own family '{family.name}' reads this configuration; the plugin would never be asked")


def tells_a_shape(subject: Subject) -> None:
    """It tells the model's shape, the same each time, as plain values."""
    config = _own(subject).config
    spec = plugin_spec(subject.loaded, config)
    if not isinstance(spec, DecoderSpec):
        raise Failure(f"decoder_spec answered {type(spec).__name__}, expected DecoderSpec")
    if plugin_spec(subject.loaded, dict(config)) != spec:
        raise Failure("its DecoderSpec is another one the second time")
    if pickle.loads(pickle.dumps(spec)) != spec:
        raise Failure("the DecoderSpec does not survive a copy")


def names_every_tensor(subject: Subject) -> None:
    """Every tensor of the model has a canonical name of its own, with the shape that the spec tells."""
    manifest = _own(subject)
    spec = plugin_spec(subject.loaded, manifest.config)
    try:
        tensors = plugin_names(subject.loaded, manifest, spec).manifest.tensors
    except CheckpointError as error:
        raise Failure(str(error)) from None
    for name, shape in spec.tensor_shapes().items():
        if name not in tensors:
            raise Failure(f"no tensor of the checkpoint becomes '{name}', which the shape needs")
        if tuple(tensors[name].shape) != tuple(shape):
            raise Failure(f"'{name}' has shape {tensors[name].shape} in the checkpoint, the shape says {tuple(shape)}")


def refuses_damage(subject: Subject) -> None:
    """A configuration without its sizes is refused with a sentence."""
    config: dict[str, Any] = {"model_type": _own(subject).config.get("model_type")}
    try:
        plugin_spec(subject.loaded, config)
    except UserError as error:
        if str(error).strip():
            return
    except Exception as error:
        raise Failure(f"it raises {type(error).__name__} for an empty configuration; raise UserError") from None
    raise Failure("it accepts a configuration without sizes")


def runs_its_model(subject: Subject) -> None:
    """The engine runs its checkpoint, with any token of the vocabulary that the shape tells."""
    from core import LLM, SamplingParams

    size = plugin_spec(subject.loaded, _own(subject).config).vocab_size
    settings: dict[str, Any] = {"max_model_len": 16, "kv_cache_memory_bytes": 4 << 20, "use_tqdm_on_load": False}
    if subject.plugins is not None:
        settings["plugins"] = subject.plugins
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with LLM(model=subject.model, dtype="float32", **settings) as llm:
        (output,) = llm.generate([{"prompt_token_ids": [0, size - 1]}], params, use_tqdm=False)
    (choice,) = output.outputs
    if len(choice.token_ids) != 2:
        raise Failure(f"asked for two tokens, the engine gave {len(choice.token_ids)}: {choice.stop_reason}")


CHECKS = (claims_its_own, tells_a_shape, names_every_tensor, refuses_damage, runs_its_model)


def _own(subject: Subject) -> Any:
    if subject.model is None:
        raise Skipped("it needs a small checkpoint of its own family; give one with --model")
    return subject.sample.manifest

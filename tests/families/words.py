"""A model's shape in a few words, for people who look for a model.

Owns: those words. Never does: read a configuration. Called by: the document.
"""

from core.api.specs import AttentionSpec, LatentSpec, MixerSpec, StateSpec
from core_runtime.specs.decoder_spec import DecoderSpec

ORDERS = {
    "pre": "", "sandwich": "norms on both sides", "post": "norms behind", "residual_post": "norms of the stream",
    "parallel": "parallel blocks", "parallel_two": "parallel blocks with two norms",
}  # fmt: skip


def in_words(spec: DecoderSpec) -> str:
    """What it is made of, the mixers first."""
    words = [*_mixers(spec), *_rotation(spec), *_halves(spec), ORDERS[spec.order]]
    if spec.norm.kind == "layer":
        words.append("layer norms")
    if spec.positions is not None:
        words.append("learned positions" if not spec.positions.computed else "sinusoids")
    if spec.logit_cap is not None:
        words.append("capped logits")
    if spec.streams is not None:
        words.append("several streams")
    if any(block.aside for block in spec.blocks):
        words.append("shared blocks")
    scalars = (spec.residual_scale, spec.logit_scale)
    if any(scale != 1.0 for scale in scalars):
        words.append("scalars")
    if not spec.causal_lm:
        words.append("hidden states")
    return ", ".join(word for word in words if word)


def _mixers(spec: DecoderSpec) -> list[str]:
    found: list[str] = []
    for mixer in spec.mixers:
        word = _mixer(mixer)
        if word not in found:
            found.append(word)
    heads = spec.heads
    if heads.norm is not None:
        found.append("q/k norms")
    if heads.gate:
        found.append("gated attention")
    if any(block.beside is not None for block in spec.blocks):
        found.append("side by side")
    return found


def _mixer(mixer: MixerSpec) -> str:
    if isinstance(mixer, StateSpec):
        return mixer.op
    if isinstance(mixer, LatentSpec):
        return "latent attention" if mixer.index is None else "latent attention with an index"
    return _attention(mixer)


def _attention(mixer: AttentionSpec) -> str:
    word = "attention"
    if mixer.window is not None:
        word = "chunked attention" if mixer.chunked else "sliding attention"
    if not mixer.causal:
        word = f"two-sided {word}"
    extras = {"sinks": mixer.sinks, "ALiBi": mixer.alibi, "soft caps": mixer.cap is not None}
    told = [name for name, has in extras.items() if has]
    return f"{word} with {' and '.join(told)}" if told else word


def _rotation(spec: DecoderSpec) -> list[str]:
    attending = [block for block in spec.blocks if any(not isinstance(mixer, StateSpec) for mixer in block.mixers)]
    ropes = [block.rope for block in attending if block.rope is not None]
    found = []
    if ropes and len(ropes) < len(attending):
        found.append("some layers without rope")
    if any(rope.size is not None for rope in ropes):
        found.append("partial rope")
    if any(rope.interleaved for rope in ropes):
        found.append("neighbouring pairs")
    return found


def _halves(spec: DecoderSpec) -> list[str]:
    found = []
    experts = [block.experts for block in spec.blocks if block.experts is not None]
    if experts:
        shared = any(one.shared_intermediate_size for one in experts)
        found.append("experts and a shared one" if shared else "experts")
    dense = [spec.block_mlp(index) for index in range(len(spec.blocks))]
    if any(mlp is not None and not mlp.gated for mlp in dense):
        found.append("plain MLP")
    return found

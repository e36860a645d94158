"""A projector beside a text model: the whole model's configuration, and the tower's tensors under transformers' names.

Owns: `attach`, and the checks that projector and text model belong together. Never does: read a weight. Called by: the GGUF
loader's `resolve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from core.api.errors import nearest
from core_loaders.gguf.placement import JOINT
from core_loaders.gguf.projectors.row import Projector
from core_loaders.gguf.projectors.rows import rows
from core_loaders.gguf.projectors.tower import LIMITS, TowerSource
from core_loaders.gguf.reader import GGUFTensor
from core_runtime.models.families.wrappers import PROJECTOR
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo

EPS: Final = (1e-13, 0.1)
ENDINGS: Final = ("weight", "bias")
NEUTRAL: Final = frozenset({
    "clip.has_vision_encoder", "clip.has_text_encoder", "clip.has_llava_projector", "clip.use_gelu", "clip.use_silu",
    "clip.vision.projection_dim", "clip.vision.image_size", "clip.vision.feed_forward_length",
    "clip.vision.attention.layer_norm_epsilon", "clip.vision.image_crop_resolution", "clip.vision.image_aspect_ratio",
    "clip.vision.image_split_resolution", "clip.vision.mm_projector_type", "clip.vision.mm_patch_merge_type",
    "clip.vision.feature_layer", "clip.projector_type", "clip.vision.projector_type",
})  # fmt: skip
"""Keys that a row need not read: others of the file, or its tensors, say the same, or the tower's class does."""


def attach(manifest: CheckpointManifest, path: str) -> CheckpointManifest:
    """Return the manifest of a text model together with its projector. Raises CheckpointError.

    The configuration is that of the whole model. `image_projector` holds what has no place in it: the projector's type, the
    contents of the processor's files, and the modules that the file may lack.
    """
    text = dict(manifest.config)
    source = TowerSource(path, text)
    row = _row_of(source)
    if source.metadata.flag("clip.has_audio_encoder", False):
        raise source.fail("has an encoder of sounds, too, which is not served.")
    _check_text(source, row)
    tower = _tower_config(source, row)
    whole: dict[str, Any] = {"model_type": row.model_type, "architectures": [row.hf_class]}
    row.settle(source, tower, whole)
    tokens, ids = _tokens(source, row, manifest)
    processor = row.processor(source, whole)
    text["model_type"] = row.text_type or text["model_type"]
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"):
        if text.get(name) is not None:
            whole.setdefault(name, text[name])
    sources = _placed(source, row, tower)
    _check_width(source, row)
    _check_keys(source)
    spelled = {"image_token_id": ids[row.row_token]}
    if row.model_type == "gemma3":
        spelled |= {"boi_token_index": ids["boi_token"], "eoi_token_index": ids["eoi_token"]}
    config = {
        **whole,
        **spelled,
        "text_config": text,
        "vision_config": tower,
        PROJECTOR: {"type": source.kind, "processor": processor, "tokens": tokens, "absent": list(row.absent)},
    }
    file = len(manifest.files)
    placed = {name: _info(name, [source.tensors[part] for part in parts], file) for name, parts in sources.items()}
    return msgspec.structs.replace(
        manifest, config=config, files=[*manifest.files, path], tensors={**manifest.tensors, **placed}
    )


def row_of_config(config: Mapping[str, Any]) -> Projector:
    """Return the row of a configuration that `attach` made."""
    return rows()[config[PROJECTOR]["type"]]


def _row_of(source: TowerSource) -> Projector:
    known = rows()
    if source.kind not in known:
        listed = ", ".join(sorted(known))
        raise source.fail(
            f"has a projector of type '{source.kind}', which is not served; expected one of {listed}."
            f"{nearest(source.kind, known)}"
        )
    return known[source.kind]


def _check_text(source: TowerSource, row: Projector) -> None:
    """Raise CheckpointError for a text model that this type of projector does not belong to."""
    kind = source.text["model_type"]
    if row.texts and kind not in row.texts:
        raise source.fail(
            f"has a projector of type '{source.kind}', which belongs to text models of type {' or '.join(row.texts)}; this "
            f"one is of type '{kind}'."
        )


def _check_width(source: TowerSource, row: Projector) -> None:
    """Raise CheckpointError for a projector whose rows are not as wide as the text model's embeddings."""
    name, axis = row.output
    found, expected = source.tensors[name].shape[axis], source.text["hidden_size"]
    if found != expected:
        raise source.fail(
            f"makes rows of {found} numbers (tensor '{name}'); the text model's embeddings have {expected}."
        )


def _tower_config(source: TowerSource, row: Projector) -> dict[str, Any]:
    """Return the tower's configuration from the keys that the type reads. Raises CheckpointError."""
    config: dict[str, Any] = dict(row.tower)
    for name, key in row.keys.items():
        config[key] = source.count(name) if name in LIMITS else source.number(name, *EPS)
    heads = source.count("attention.head_count")
    width = source.count("embedding_length")
    if width % heads:
        raise source.fail(f"has {heads} heads in a tower of width {width}, which they do not divide.")
    return config


def _tokens(source: TowerSource, row: Projector, manifest: CheckpointManifest) -> tuple[dict[str, str], dict[str, int]]:
    """Return the spellings and the ids of the special tokens, by name. Raises CheckpointError for a missing one."""
    vocabulary = manifest.tokenizer.vocabulary
    known = {} if vocabulary is None else {token: index for index, token in enumerate(vocabulary.tokens)}
    spelled: dict[str, str] = {}
    for name, texts in row.tokens.items():
        found = next((text for text in texts if text in known), None)
        if found is None:
            raise source.fail(
                f"needs a token '{texts[0]}', which the text model's vocabulary has not; is this the text of another model?"
            )
        spelled[name] = found
    return spelled, {name: known[text] for name, text in spelled.items()}


def _placed(source: TowerSource, row: Projector, tower: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return tensor of transformers → its parts in the file. Raises CheckpointError for unknown and for missing tensors."""
    layers = int(tower.get("num_hidden_layers") or tower["depth"])
    exchange = _exchanged(source, row)
    found: dict[str, tuple[str, ...]] = {}
    for target, parts, needed in _wanted(row, layers):
        missing = [part for part in parts if part not in source.tensors]
        if missing and (needed or len(missing) < len(parts)):
            raise source.fail(f"has no tensor '{missing[0]}', though it announces {layers} layers; it is incomplete.")
        if not missing:
            found[target] = tuple(exchange.get(part, part) for part in parts)
    used = {part for parts in found.values() for part in parts}
    unknown = [name for name in source.tensors if name not in used and name not in row.neutral]
    if unknown:
        raise source.fail(f"has the tensor '{unknown[0]}', which is unknown for a projector of type '{source.kind}'.")
    return found


def _wanted(row: Projector, layers: int) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield each tensor of transformers with the names of its parts, and whether the tower is incomplete without."""
    for module, target in row.modules.items():
        for ending in ENDINGS:
            needed = ending == "weight" and module not in row.optional
            yield from _layers(f"{target}.{ending}", (f"{module}.{ending}",), needed, layers)
    for name, target in row.whole.items():
        yield target, (name,), True
    for target, parts in row.joined.items():
        yield from _layers(target, parts, target.endswith("weight"), layers)


def _layers(
    target: str, parts: tuple[str, ...], needed: bool, layers: int
) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    if "*" not in target:
        yield target, parts, needed
        return
    for layer in range(layers):
        number = str(layer)
        yield target.replace("*", number), tuple(part.replace("*", number) for part in parts), needed


def _exchanged(source: TowerSource, row: Projector) -> dict[str, str]:
    """Return the names to exchange: early converters took the MLP's first matrix for its last one, and the other way round."""
    down = source.tensors.get("v.blk.0.ffn_down.weight")
    width = source.count("embedding_length")
    if "v.blk.*.ffn_gate" in row.modules or down is None or down.shape[-1] != width or down.shape[0] == width:
        return {}
    pairs: dict[str, str] = {}
    for name in source.tensors:
        if ".ffn_up." in name:
            pairs[name] = name.replace(".ffn_up.", ".ffn_down.")
        elif ".ffn_down." in name:
            pairs[name] = name.replace(".ffn_down.", ".ffn_up.")
    return pairs


def _check_keys(source: TowerSource) -> None:
    """Raise CheckpointError for a key about pictures that nothing read."""
    for key in source.metadata.unread("clip."):
        if key in NEUTRAL:
            continue
        raise source.fail(
            f"has the key '{key}' ({source.metadata.values[key]!r:.60}), which is not understood for a projector of type "
            f"'{source.kind}', so answers could be wrong."
        )


def _info(name: str, parts: Sequence[GGUFTensor], file: int) -> TensorInfo:
    """Describe a tensor of the tower: packed ones are unpacked while they are read, and parts are joined."""
    first = parts[0]
    shape = first.shape
    if len(parts) > 1:
        # Parts of a patch's frames are beside each other; those of an attention's matrix above each other.
        is_patch = len(shape) > 2
        shape = (*shape[:2], len(parts), *shape[2:]) if is_patch else (sum(part.shape[0] for part in parts), *shape[1:])
    kinds = {part.type.name for part in parts}
    dtype = first.type.name if len(kinds) == 1 and not first.type.packed else "F32"
    size = sum(part.nbytes for part in parts)
    offset = min(part.offset for part in parts)
    return TensorInfo(name, shape, dtype, size, file, offset, JOINT.join(part.name for part in parts))

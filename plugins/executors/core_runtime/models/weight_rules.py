"""Rules for the names and layout of tensors in a family's checkpoints, as data. Torch-free.

Owns: the vocabulary of these rules. Never does: apply them (`core_runtime.models.tensors.weight_map` does). Called by: rows.
"""

from __future__ import annotations

from typing import Final

import msgspec

PADDED: Final = 64
"""Rows of a vocabulary are padded to a multiple of this number where a file has such rows (vLLM)."""


class Rename(msgspec.Struct, frozen=True, tag=True):
    """A rule that replaces every match of a pattern in a name. Renames come first, one after another, on all names.

    pattern: a regular expression.
    to: the replacement, with `\\1` for its groups.
    apart: adapters cannot change the matches under these names: several modules stand for one tensor.
    """

    pattern: str
    to: str
    apart: bool = False


class Stacked(msgspec.Struct, frozen=True, tag=True):
    """A tensor with all experts of a layer, [E, N, K], or [E, N] of biases; it becomes a tensor for each expert and piece.

    pattern: the whole name, after renames.
    to: name of an expert's tensor, with `\\1` for groups of the pattern, `{expert}` and `{piece}`.
    pieces: names of the matrices whose rows lie one after another in N, in equal numbers.
    alternating: the rows of the pieces alternate instead.
    transposed: the tensor is [E, K, N]; None: decided by its shape.
    flat: experts are not an axis of their own: the tensor is [E * N, K], or [E * K, N] when transposed.
    packed: the tensor holds codes or their scales, not floats; its first axes are those of the matrix.
    """

    pattern: str
    to: str
    pieces: tuple[str, ...]
    alternating: bool = False
    transposed: bool | None = False
    flat: bool = False
    packed: bool = False


class Cut(msgspec.Struct, frozen=True, tag=True):
    """A tensor whose rows are those of one or several tensors, one after another, in equal numbers.

    pattern: the whole name, after renames.
    to: name of a tensor, with `\\1` for groups of the pattern, and `{piece}`.
    pieces: names of the tensors, in the order of their rows.
    run: rows of a tensor that lie together before as many of the next one, and so on in turns; 0: all of them.
    rows: rows of each tensor, where their numbers differ; the last ones, up to a multiple of `PADDED`, may be padding.
    """

    pattern: str
    to: str
    pieces: tuple[str, ...]
    run: int = 0
    rows: tuple[int, ...] = ()


class Copied(msgspec.Struct, frozen=True, tag=True):
    """A tensor that a model also uses in other places.

    pattern: the whole name, after renames.
    to: names of these places, with `\\1` for groups of the pattern.
    apart: these places are modules of their own, each with its own change by an adapter.
    """

    pattern: str
    to: tuple[str, ...]
    apart: bool = False


class Joined(msgspec.Struct, frozen=True, tag=True):
    """Tensors of one shape that become one with an additional first axis.

    pattern: the whole name, after renames, with a group `number`: the index of the tensor in the new one, from 0.
    to: name of the new tensor.
    """

    pattern: str
    to: str


class Turned(msgspec.Struct, frozen=True, tag=True):
    """A matrix that is stored as [K, N]. pattern: the whole name, after renames."""

    pattern: str


class UnitRows(msgspec.Struct, frozen=True, tag=True):
    """A matrix that is computed with rows of length 1. pattern: the whole name, after renames."""

    pattern: str


class Ignored(msgspec.Struct, frozen=True, tag=True):
    """Tensors that are not read.

    pattern: the whole name in the checkpoint.
    reason: why ignoring them changes nothing.
    renamed: the pattern is also matched against names after renames, as errors show them.
    apart: the names are those of modules that adapters change, though their tensors are others'.
    """

    pattern: str
    reason: str
    renamed: bool = False
    apart: bool = False


WeightRule = Rename | Stacked | Cut | Copied | Joined | Turned | UnitRows | Ignored

USUALLY_IGNORED: tuple[Ignored, ...] = (
    Ignored(r".*rotary_emb\.inv_freq", "computed from the configuration"),
    Ignored(r".*rotary_emb\.(cos|sin)_cached", "computed from the configuration"),
    Ignored(r".*\.masked_bias", "the causal mask"),
    Ignored(r".*\.position_ids", "counted"),
    Ignored(
        r".*_(q_attn|k_cache)\.(weight|perm)", "one rotation of queries and keys leaves their products as they are"
    ),
)
"""Rules for tensors that older programs left in checkpoints of any family."""


def modules(*pairs: tuple[str, str]) -> tuple[Rename, ...]:
    """Return rules that rename modules: a dotted name anywhere between dots, or at either end, and its canonical
    form.
    """
    rules = []
    for own, usual in pairs:
        escaped = own.replace(".", r"\.")
        rules.append(Rename(rf"(?<![^.]){escaped}(?![^.])", usual))
    return tuple(rules)


def experts(
    module: str, gate_up: str, down: str, *, alternating: bool = False, transposed: bool | None = False
) -> tuple[WeightRule, ...]:
    """Return the rules for stacked experts of `module` in a block: one tensor of gates and ups, one of downs, and their
    biases.
    """
    rules: list[WeightRule] = []
    prefix = rf"(model\.layers\.\d+\.{module})\."
    to = r"\1.experts.{expert}.{piece}"
    both = ("gate_proj", "up_proj")
    rules.append(Stacked(prefix + gate_up, to + ".weight", both, alternating, transposed))
    rules.append(Stacked(prefix + down, to + ".weight", ("down_proj",), transposed=transposed))
    rules.append(Stacked(prefix + gate_up + "_bias", to + ".bias", both, alternating))
    rules.append(Stacked(prefix + down + "_bias", to + ".bias", ("down_proj",)))
    return tuple(rules)


def packed_experts(module: str, gate_up: str, down: str, *, alternating: bool = False) -> tuple[WeightRule, ...]:
    """Return the rules for stacked experts whose codes and scales are tensors of their own, `NAME_blocks` and
    `NAME_scales`.
    """
    rules: list[WeightRule] = []
    prefix = rf"(model\.layers\.\d+\.{module})\."
    to = r"\1.experts.{expert}.{piece}"
    both = ("gate_proj", "up_proj")
    for kind in ("blocks", "scales"):
        suffix = f".weight_{kind}"
        rules.append(Stacked(f"{prefix}{gate_up}_{kind}", to + suffix, both, alternating, packed=True))
        rules.append(Stacked(f"{prefix}{down}_{kind}", to + suffix, ("down_proj",), packed=True))
    return tuple(rules)

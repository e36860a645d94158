"""What one of several ranks holds of an adapter.

Owns: the translation of an adapter's changes from the whole model to a rank's part of it. Never does: read a file, or compute.
Called by: the reading of adapters, on each rank.

An adapter is fitted to the whole model, and its lengths (DoRA) are those of whole matrices. Then each rank takes its share: B
has the rows of the rank's outputs, A the columns of its inputs. The embedding is changed after the sum over ranks, so each
rank has all of that change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from core.api.errors import UserError
from core.api.specs import LayerSpec
from core_runtime.layers.adapted_norms import NormChange
from core_runtime.layers.whole_change import WholeChange
from core_runtime.models.adapters.fitting import Fitted, NormPart, PartChange, WholePart
from core_runtime.models.adapters.layers import AdaptedPart, LayerKey, adapted_norms, adapted_parts
from core_runtime.models.tensors.rank_share import RankShare
from core_runtime.specs.block_parts import mixer_parts
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.model_part import Part
from core_runtime.weights.adapter_contents import ModuleChange
from core_runtime.weights.low_rank import LowRank


class AdapterShare:
    """The share of one rank.

    spec: shape of the whole model. part: the rank's part of it.

    local: shape of that part.
    """

    def __init__(self, spec: DecoderSpec, part: Part) -> None:
        self._spec = spec
        self.local = spec.local(part)
        self._share = RankShare(part, {linear.name: linear for linear in spec.linears()})
        self._parts = adapted_parts(self.local)
        self._norms = adapted_norms(self.local)

    def check(self, name: str, fitted: Fitted) -> None:
        """Raise UserError for a change that ranks cannot divide. name: the adapter's."""
        part = self._share.part
        for key, parts in fitted.layers.items():
            if key.expert >= 0 and part.size > 1 and part.experts.moves:
                raise UserError(
                    f"Adapter '{name}' changes {parts[0].module}, a matrix of an expert, and --enable-eplb moves experts "
                    "between ranks; leave it out."
                )

    def expert_blocks(self, fitted: Fitted) -> frozenset[int]:
        """Return this rank's blocks of which the adapter changes an expert, whichever rank has that one."""
        first, count = self.local.first_block, len(self.local.blocks)
        blocks = {key.block - first for key in fitted.layers if key.expert >= 0}
        return frozenset(block for block in blocks if 0 <= block < count)

    def layers(self, fitted: Fitted) -> dict[LayerKey, list[tuple[PartChange, AdaptedPart]]]:
        """Return the changes of the layers that this rank has, each with the rank's share of the changed part."""
        found: dict[LayerKey, list[tuple[PartChange, AdaptedPart]]] = {}
        for parts in fitted.layers.values():
            for one in parts:
                mine = self._parts.get(one.part.part.name)
                if mine is not None:
                    found.setdefault(mine.layer, []).append((one, mine))
        return found

    def cut(self, update: LowRank, part: LayerSpec) -> LowRank:
        """Return this rank's share of an update of a whole part. part: the rank's share of that part."""
        columns = self._share.columns(part)
        if columns is not None:
            update = replace(update, a=update.a[:, columns].contiguous())
        if part.shape[0] == self._share.whole[part.name].shape[0]:
            return update
        rows = self._share.rows(part)
        gain = None if update.gain is None else update.gain[rows]
        shift = None if update.shift is None else update.shift[rows]
        return replace(update, b=update.b[rows], gain=gain, shift=shift)

    def norms(
        self, changes: Mapping[LayerKey, NormChange], fitted: Mapping[LayerKey, NormPart]
    ) -> dict[LayerKey, NormChange]:
        """Return the changes of the norms that this rank has. fitted: the norms that the changes are about."""
        found = {}
        for key, change in changes.items():
            mine = self._norms.get(fitted[key].norm.part.name)
            if mine is not None:
                weight, bias = (
                    None if one is None else self._share.cut(one, mine.part.shape)
                    for one in (change.weight, change.bias)
                )
                found[mine.key] = NormChange(weight, bias)
        return found

    def whole(self, changes: Mapping[int, list[WholePart]]) -> dict[int, list[WholePart]]:
        """Return the modules of this rank's blocks of which the adapter has whole tensors, by the numbers of all blocks."""
        first, count = self.local.first_block, len(self.local.blocks)
        return {block: parts for block, parts in changes.items() if first <= block < first + count}

    def cut_whole(self, changes: Mapping[int, WholeChange]) -> dict[int, WholeChange]:
        """Return this rank's share of whole tensors, by the numbers of its blocks. changes: by the numbers of all blocks."""
        first = self.local.first_block
        found = {}
        for block, change in changes.items():
            params = change.params
            if self._share.part.size > 1:
                params = {name: self._cut_param(block, name, tensor) for name, tensor in params.items()}
            found[block - first] = WholeChange(params)
        return found

    def _cut_param(self, block: int, name: str, tensor: Tensor) -> Tensor:
        """Return this rank's share of a tensor of a block's mixers; others, such as those of streams, are whole."""
        whole, mine = mixer_parts(self._spec, block), mixer_parts(self.local, block - self.local.first_block)
        if name not in mine.params:
            return tensor
        _, shape = mine.params[name]
        return self._share.cut(tensor, shape, whole.sections.get(name, ()), mine.sections.get(name, ()))

    def embedding(self, change: ModuleChange | None) -> ModuleChange | None:
        """Return the change of the embedding, where this rank looks tokens up; None elsewhere."""
        return change if self.local.holds_embedding else None

    def head(self, change: ModuleChange | None) -> ModuleChange | None:
        """Return the change of the output head, where this rank has logits; None elsewhere."""
        return change if self.local.holds_head else None

    def rows_of_head(self, tensor: Tensor) -> Tensor:
        """Return the rows of this rank's tokens, of a tensor [V, ...]."""
        start = self.local.vocab_start
        return tensor[start : start + self.local.vocab_size]

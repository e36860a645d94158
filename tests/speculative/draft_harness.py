"""A target and a draft from state dicts, run by hand: what the engine's draft pass does, without an engine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from core.plugin.hookspecs import DraftContext
from core_runtime.contracts import Kernels
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.families import decoder_spec, weight_map
from core_runtime.models.tensors.borrowing import borrow, borrowing_spec
from core_runtime.models.tensors.draft_names import draft_weight_map
from core_runtime.models.tensors.loading import WHOLE, WeightLoading
from core_runtime.models.tensors.packing import Packing
from core_runtime.models.tensors.weight_map import WeightMap
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.draft_spec import DraftSpec, draft_decoder
from tests.models.harness import Harness, StateDictLoader

BLOCKS = list(range(1, 20))


class DraftHarness(Harness):
    """The draft of a target that runs in a harness of its own."""

    def __init__(
        self,
        target: Harness,
        draft: DraftSpec,
        hf_config: Mapping[str, Any],
        state: dict[str, Tensor],
        kernels: Sequence[Kernels] = (),
        *,
        in_target: bool = False,
    ) -> None:
        self.draft = draft
        self.target = target
        self.block_size = target.block_size
        self.backend = target.backend
        spec = draft_decoder(draft, target.spec)
        inner = StateDictLoader(state)
        manifest = msgspec.structs.replace(inner.resolve(""), config=dict(hf_config))
        names = draft_weight_map(manifest, draft, spec, in_target=in_target)
        chosen = KernelSet(kernels)
        cpu = torch.device("cpu")
        packing = Packing(spec, WHOLE, None, chosen, "float32", torch.float32, cpu)
        loading = WeightLoading(spec, names.manifest, packing)
        weights = borrow(loading.run(names.loader(inner)), target.weights, draft)
        self.spec = borrowing_spec(spec, target.spec, draft)
        self._start(weights, chosen)

    def drafts(self, tokens: list[int], count: int, chunks: Sequence[int]) -> tuple[list[int], Tensor]:
        """Greedy drafts behind known tokens, and the float32 logits [count, V] over the target's tokens.

        chunks: tokens of each first pass; together they are all known ones.
        """
        hidden = self._hidden_states(tokens)
        done = 0
        out = torch.empty(0)
        for size in chunks:
            out = self._pass(tokens[done : done + size], done, hidden[done : done + size])
            done += size
        assert done == len(tokens), "the chunks are all known tokens"
        found: list[int] = []
        rows: list[Tensor] = []
        for place in range(count):
            logits = self._spread(out[-1])
            rows.append(logits)
            found.append(int(logits.argmax()))
            if place + 1 < count:
                carried = self._carried(self.num_rows - 1)
                out = self._pass(found[-1:], done + place, carried)
        return found, torch.stack(rows)

    def _hidden_states(self, tokens: list[int]) -> Tensor:
        """[T, H]: at each token what it was sampled from; zeros for the first one."""
        self.target.run([(tokens, 0, BLOCKS)])
        taps = self.target.model.workspace.view("taps", len(tokens))
        entry = self.model.draft_entry
        assert entry is not None
        projected = torch.empty(len(tokens), self.spec.hidden_size)
        entry.project(taps, projected)
        zero = torch.zeros_like(projected[:1])
        return torch.cat([zero, projected[:-1]])

    def _pass(self, tokens: list[int], done: int, hidden: Tensor) -> Tensor:
        self.num_rows = len(tokens)
        self.model.workspace.view("hidden", len(tokens)).copy_(hidden)
        return self.run([(tokens, done, BLOCKS)])

    def _carried(self, row: int) -> Tensor:
        """[1, H], what the next pass takes."""
        if self.draft.carries == "normed":
            return self.model.hidden(torch.tensor([row])).clone()
        return self.model.workspace.view("residual", self.num_rows)[row : row + 1].clone()

    def _spread(self, logits: Tensor) -> Tensor:
        """Over the target's tokens."""
        head = self.weights.head
        if head is None or head.token_ids is None:
            return logits
        spread = torch.full((self.target.spec.vocab_size,), float("-inf"))
        spread[head.token_ids] = logits
        return spread


def target_harness(
    hf_config: dict[str, Any], state: dict[str, Tensor], taps: tuple[int, ...], kernels: Sequence[Kernels] = ()
) -> Harness:
    """A target whose taps are read, from tensors as its checkpoint names them."""
    spec = msgspec.structs.replace(decoder_spec(hf_config), taps=taps)
    inner = StateDictLoader(state)
    manifest = msgspec.structs.replace(inner.resolve(""), config=dict(hf_config))
    names = weight_map(manifest, spec)
    loader = MappedLoader(inner, names)
    return Harness(hf_config, state, kernels=kernels, spec=spec, loader=loader)


class MappedLoader:
    """Tensors under canonical names."""

    def __init__(self, inner: StateDictLoader, names: WeightMap) -> None:
        self.names = names
        self.loader = names.loader(inner)

    def resolve(self, ref: str) -> CheckpointManifest:
        return self.names.manifest

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        return self.loader.iter(manifest, reads)


def context_of(
    target: dict[str, Any], hf_config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, has_checkpoint: bool = True
) -> DraftContext:
    """What a proposer's manifest is asked with. target: its configuration."""
    return DraftContext(
        target=decoder_spec(target), hf_config=hf_config, tensors=list(tensors), has_checkpoint=has_checkpoint
    )

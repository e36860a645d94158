"""Our side: a checkpoint on disk, through the loader and the family table, as a decoder that is run by hand.

Owns: the caches of every kind of layer, and the steps. Never does: schedule, sample, compare.
Called by: the tests of rows, the command line.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from core.api.config import CacheConfig
from core.api.specs import MixerSpec, StateSpec
from core.api.step_limits import StepLimits
from core_attention.torch_sdpa.backend import TorchSDPA
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.contracts import BatchView, Loader, QuantizationMethod
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.rotary import rotary_tables
from core_runtime.layers.workspace import Workspace
from core_runtime.models.decoder import Decoder
from core_runtime.models.families import decoder_spec, weight_map
from core_runtime.models.tensors.loading import WHOLE, WeightLoading
from core_runtime.models.tensors.packing import Packing
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec

BLOCK_SIZE = 4
MAX_SEQS = 4
MAX_LENGTH = 96
LONGEST = 64
"""Of a sequence that is computed: what decides on the factors of longrope."""
MAX_TOKENS = 128
LIMITS = StepLimits(sequences=MAX_TOKENS, tokens=MAX_TOKENS, logit_rows=MAX_TOKENS)


class Piece(NamedTuple):
    """What one sequence computes in a step.

    sequence: its number, from 0.
    tokens: token ids.
    done: tokens computed in earlier steps; 0 begins the sequence anew.
    """

    sequence: int
    tokens: Sequence[int]
    done: int


def cached_mixers(spec: DecoderSpec) -> list[MixerSpec]:
    """Everything that remembers, in the order of `Decoder.mixers`."""
    return list(spec.mixers)


class Harness:
    """A decoder with room for four sequences of 96 tokens.

    path: the checkpoint's directory.
    kernels: None: the reference's.
    loader: None: of safetensors.
    method: of quantization, for a manifest under canonical names; None: the checkpoint is not quantized.
    """

    def __init__(
        self,
        path: Path,
        kernels: KernelSet | None = None,
        loader: Loader | None = None,
        method: Callable[[CheckpointManifest], QuantizationMethod] | None = None,
    ) -> None:
        loader = loader or SafetensorsLoader()
        manifest = loader.resolve(str(path))
        self.spec = decoder_spec(manifest.config)
        tensors = weight_map(manifest, self.spec)
        device = torch.device("cpu")
        kernels = kernels or KernelSet(())
        quantization = method(tensors.manifest) if method else None
        packing = Packing(self.spec, WHOLE, quantization, kernels, "float32", torch.float32, device)
        weights = WeightLoading(self.spec, tensors.manifest, packing).run(tensors.loader(loader))
        tables = rotary_tables(self.spec, 2 * MAX_LENGTH, device, LONGEST)
        workspace = Workspace(device)
        self.model = Decoder(self.spec, weights, kernels, tables, workspace, torch.float32, LIMITS)
        self._bind()

    @torch.inference_mode()
    def logits(self, pieces: Sequence[Piece]) -> Tensor:
        """float32 [T, V] of one step, one piece after the other."""
        count = self._forward(pieces)
        return self.model.logits(torch.arange(count)).clone()

    @torch.inference_mode()
    def hidden(self, pieces: Sequence[Piece]) -> Tensor:
        """float32 [T, H] of one step: the last hidden state."""
        count = self._forward(pieces)
        return self.model.hidden(torch.arange(count)).clone()

    @torch.inference_mode()
    def hidden_states(self, tokens: Sequence[int]) -> list[Tensor]:
        """float32 [T, H] of one sequence: the embeddings, and what leaves each block."""
        view, states = self._views([Piece(0, tokens, 0)])
        metadata = self._metadata(view, states)
        residual = self.model.embed(torch.tensor(tokens), view.positions)
        found = [residual.clone()]
        blocks = self.model.weights.blocks
        first = 0
        for spec, block in zip(self.spec.blocks, blocks, strict=True):
            count = len(spec.mixers)
            self.model.spec = msgspec.structs.replace(self.spec, blocks=(spec,))
            self.model.weights.blocks = [block]
            residual = self.model.run_blocks(view.positions, metadata[first : first + count])
            found.append(residual.clone())
            first += count
        self.model.weights.blocks = blocks
        self.model.spec = self.spec
        return found

    def _forward(self, pieces: Sequence[Piece]) -> int:
        view, states = self._views(pieces)
        metadata = self._metadata(view, states)
        tokens = [token for piece in pieces for token in piece.tokens]
        self.model.forward(torch.tensor(tokens), view.positions, metadata)
        return len(tokens)

    def _bind(self) -> None:
        """Give each layer a cache of its own: blocks of tokens, or a block for each state."""
        backend = TorchSDPA()
        cache = CacheConfig(block_size=BLOCK_SIZE, dtype="float32")
        num_blocks = MAX_SEQS * MAX_LENGTH // BLOCK_SIZE
        rows: list[Tensor] = []
        for spec, mixer in zip(cached_mixers(self.spec), self.model.mixers, strict=True):
            count = MAX_SEQS if isinstance(spec, StateSpec) else num_blocks
            size = mixer.layer_bytes(backend, cache)
            lender = self.spec.lenders.get(len(rows))
            raw = torch.zeros(count, size, dtype=torch.uint8) if lender is None else rows[lender]
            mixer.bind_cache(backend, cache, raw, None)
            rows.append(raw)

    def _metadata(self, view: BatchView, states: BatchView) -> list[Any]:
        """Of each layer."""
        found = []
        for spec, mixer in zip(cached_mixers(self.spec), self.model.mixers, strict=True):
            found.append(mixer.build(states if isinstance(spec, StateSpec) else view))
        return found

    def _views(self, pieces: Sequence[Piece]) -> tuple[BatchView, BatchView]:
        """The step as layers with attention see it, and as layers with a state do."""
        width = MAX_LENGTH // BLOCK_SIZE
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for piece in pieces:
            for position in range(piece.done, piece.done + len(piece.tokens)):
                positions.append(position)
                slots.append(piece.sequence * MAX_LENGTH + position)
            starts.append(len(positions))
        lengths = [len(piece.tokens) for piece in pieces]
        seq_lens = [piece.done + len(piece.tokens) for piece in pieces]
        numbers = torch.tensor([piece.sequence for piece in pieces], dtype=torch.int32)
        common: dict[str, Any] = {
            "num_tokens": len(positions),
            "num_seqs": len(pieces),
            "block_size": BLOCK_SIZE,
            "max_query_len": max(lengths),
            "max_seq_len": max(seq_lens),
            "query_lens": lengths,
            "seq_lens_list": seq_lens,
            "cu_seqlens_q": torch.tensor(starts, dtype=torch.int32),
            "seq_lens": torch.tensor(seq_lens, dtype=torch.int32),
            "slot_mapping": torch.tensor(slots),
            "positions": torch.tensor(positions),
        }
        first_blocks = numbers.unsqueeze(1) * width
        blocks = first_blocks + torch.arange(width, dtype=torch.int32)
        return BatchView(block_table=blocks, **common), BatchView(block_table=numbers.unsqueeze(1), **common)

"""Builds a decoder on reference kernels from a transformers model, without plugins, and runs it by hand."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from core.api.config import CacheConfig
from core.api.step_limits import StepLimits
from core_attention.torch_sdpa.backend import TorchSDPA
from core_runtime.contracts import BatchView, Kernels, Loader, QuantizationMethod
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.rotary import rotary_tables
from core_runtime.layers.workspace import Workspace
from core_runtime.models.decoder import Decoder
from core_runtime.models.decoder_weights import DecoderWeights
from core_runtime.models.families import decoder_spec
from core_runtime.models.tensors.loading import WHOLE, WeightLoading
from core_runtime.models.tensors.packing import Packing
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo, TokenizerSource
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.model_part import Part

LIMITS = StepLimits(sequences=512, tokens=512, logit_rows=512)


class StateDictLoader:
    """Delivers a state dict as if it were a checkpoint."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    def resolve(self, ref: str) -> CheckpointManifest:
        infos = {
            name: TensorInfo(name, tuple(tensor.shape), "F32", tensor.nbytes, 0, 0, name)
            for name, tensor in self.state.items()
        }
        return CheckpointManifest("memory", "memory", [], infos, {}, TokenizerSource())

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in reads:
            yield name, self.state[name]


class Harness:
    """A decoder with a KV cache of 64 blocks; `run` computes tokens of one or more sequences and returns all logits."""

    def __init__(
        self,
        hf_config: dict,
        state: dict[str, torch.Tensor],
        dtype: str = "float32",
        block_size: int = 4,
        part: Part = WHOLE,
        reduce: Callable[[torch.Tensor], None] | None = None,
        kernels: Sequence[Kernels] = (),
        method: QuantizationMethod | None = None,
        loader: Loader | None = None,
        spec: DecoderSpec | None = None,
        backend: Any = None,
    ) -> None:
        """spec: in place of the one that `hf_config` means. backend: of all layers; None: torch's."""
        whole = spec or decoder_spec(hf_config)
        self.spec = whole.local(part)
        self.block_size = block_size
        device = torch.device("cpu")
        loader = loader or StateDictLoader(state)
        chosen = KernelSet(kernels)
        self.backend = backend or TorchSDPA()
        self.packing = Packing(whole, part, method, chosen, dtype, torch.float32, device)
        loading = WeightLoading(whole, loader.resolve(""), self.packing)
        self._start(loading.run(loader), chosen, reduce)

    def _start(
        self, weights: DecoderWeights, chosen: KernelSet, reduce: Callable[[torch.Tensor], None] | None = None
    ) -> None:
        """A decoder of these weights, with an empty cache."""
        device = torch.device("cpu")
        self.weights = weights
        cos_sin = rotary_tables(self.spec, 512, device)
        workspace = Workspace(device)
        self.model = Decoder(self.spec, self.weights, chosen, cos_sin, workspace, torch.float32, LIMITS, reduce)
        cache = CacheConfig(block_size=self.block_size, dtype="float32")
        for mixer in self.model.mixers:
            raw = torch.zeros(128, mixer.layer_bytes(self.backend, cache), dtype=torch.uint8)
            mixer.bind_cache(self.backend, cache, raw, None)

    def run(self, sequences: list[tuple[list[int], int, list[int]]]) -> torch.Tensor:
        """sequences: (new token ids, tokens already computed, block ids) each."""
        ids = [token for tokens, _, _ in sequences for token in tokens]
        positions = [done + i for tokens, done, _ in sequences for i in range(len(tokens))]
        slots = [
            blocks[(done + i) // self.block_size] * self.block_size + (done + i) % self.block_size
            for tokens, done, blocks in sequences
            for i in range(len(tokens))
        ]
        lens = [len(tokens) for tokens, _, _ in sequences]
        seq_lens = [len(tokens) + done for tokens, done, _ in sequences]
        width = max(len(blocks) for _, _, blocks in sequences)
        view = BatchView(
            num_tokens=len(ids),
            num_seqs=len(sequences),
            block_size=self.block_size,
            max_query_len=max(lens),
            max_seq_len=max(seq_lens),
            query_lens=lens,
            seq_lens_list=seq_lens,
            cu_seqlens_q=torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            block_table=torch.tensor([b + [0] * (width - len(b)) for _, _, b in sequences], dtype=torch.int32),
            slot_mapping=torch.tensor(slots),
            positions=torch.tensor(positions),
        )
        metadata = [mixer.build(view) for mixer in self.model.mixers]
        self.model.forward(torch.tensor(ids), view.positions, metadata)
        return self.model.logits(torch.arange(len(ids))).clone() if self.spec.holds_head else torch.empty(0)

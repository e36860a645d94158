"""Runs a model of transformers on reference kernels and paged attention by hand, from its state dict."""

from collections.abc import Sequence
from typing import Any

import torch
from models.harness import LIMITS, StateDictLoader

from core_attention.torch_sdpa.backend import TorchSDPA
from core_runtime.contracts import BatchView
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.fallback.build import build_modules
from core_runtime.models.fallback.shape import shaped_model
from core_runtime.models.tensors.packing import Packing
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.model_part import Part


class Renaming(StateDictLoader):
    """Delivers a state dict under the names that a manifest gives its tensors."""

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Any:
        for name in reads:
            yield name, self.state[manifest.tensors[name].source]


class ModuleHarness:
    """A model of transformers with a KV cache of 128 blocks; `run` is that of the decoder's harness."""

    def __init__(self, hf_config: dict[str, Any], state: dict[str, torch.Tensor], block_size: int = 4) -> None:

        self.block_size = block_size
        loader = Renaming(state)
        manifest = loader.resolve("")
        shaped = shaped_model(hf_config, manifest.tensors, torch.float32, None)
        self.spec = shaped.spec
        manifest = shaped.spec.canonical(manifest)
        kernels = KernelSet([])
        cpu = torch.device("cpu")
        packing = Packing(self.spec, Part(), None, kernels, "float32", torch.float32, cpu)
        self.model = build_modules(shaped, loader, manifest, packing, LIMITS)
        self.backend = TorchSDPA()
        from core.api.config import CacheConfig

        cache = CacheConfig(block_size=block_size, dtype="float32")
        for mixer in self.model.mixers:
            size = mixer.layer_bytes(self.backend, cache)
            mixer.bind_cache(self.backend, cache, torch.zeros(128, size, dtype=torch.uint8), None)

    def run(self, sequences: list[tuple[list[int], int, list[int]]]) -> torch.Tensor:
        """sequences: (new token ids, tokens already computed, block ids) each."""
        view, ids = batch_view(sequences, self.block_size)
        metadata = self.backend.build(view)
        with torch.inference_mode():
            self.model.forward(torch.tensor(ids), view.positions, [metadata] * len(self.spec.mixers))
            return self.model.logits(torch.arange(len(ids))).clone()


def batch_view(sequences: list[tuple[list[int], int, list[int]]], block_size: int) -> tuple[BatchView, list[int]]:
    """A step's view, and its tokens."""
    ids = [token for tokens, _, _ in sequences for token in tokens]
    positions: list[int] = []
    slots: list[int] = []
    for tokens, done, blocks in sequences:
        for position in range(done, done + len(tokens)):
            positions.append(position)
            slots.append(blocks[position // block_size] * block_size + position % block_size)
    lens = [len(tokens) for tokens, _, _ in sequences]
    seq_lens = [len(tokens) + done for tokens, done, _ in sequences]
    width = max(len(blocks) for _, _, blocks in sequences)
    starts = [0, *torch.tensor(lens).cumsum(0).tolist()]
    table = [blocks + [0] * (width - len(blocks)) for _, _, blocks in sequences]
    view = BatchView(
        num_tokens=len(ids),
        num_seqs=len(sequences),
        block_size=block_size,
        max_query_len=max(lens),
        max_seq_len=max(seq_lens),
        query_lens=lens,
        seq_lens_list=seq_lens,
        cu_seqlens_q=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=torch.tensor(table, dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        positions=torch.tensor(positions),
    )
    return view, ids

"""Adapters on the tiny models of all families, computed by a decoder that is run by hand.

Owns: the reading of an adapter next to such a decoder, and the comparison with peft. Never does: judge a distance.
Called by: the tests of adapters.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from core.api.adapters import AdapterSource
from core_adapters.gguf.format import GGUFFormat
from core_adapters.peft.format import PeftFormat
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.executor.adapters.outer import OuterChanges
from core_runtime.executor.adapters.own_tensors import own_tensors
from core_runtime.executor.adapters.placed import PlacedAdapters
from core_runtime.executor.adapters.reading import AdapterReader
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.adapters.fitting import Fitting
from core_runtime.models.families import weight_map
from core_runtime.models.tensors.loading import WHOLE
from core_runtime.models.tensors.packing import Packing
from tests.families.harness import Harness, Piece
from tests.families.oracle import build, load


def save_base(path: Path, model_type: str, variant: str = "plain") -> Path:
    """Save a tiny model of random weights."""
    build(model_type, variant).save_pretrained(path)
    return path


def saved_with_logits(
    path: Path, target: Path, model_type: str, prompt: Sequence[int], *, merged: bool = False, **options: Any
) -> Tensor:
    """Save an adapter of random numbers for the checkpoint at `path`; returns the model's logits with it, float32 [T, V].

    merged: whether the logits are those of the model into which peft merges the adapter.
    """
    torch.manual_seed(5)
    wanted = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(load(path, model_type), LoraConfig(**wanted)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_magnitude_vector" in name:
                    parameter.mul_(torch.rand_like(parameter) + 0.5)
                elif "lora_" in name:
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
                elif parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(target)
        if merged:
            model = model.merge_and_unload()
        with torch.inference_mode():
            found = model(input_ids=torch.tensor([list(prompt)]))
    return (found.logits if hasattr(found, "logits") else found.last_hidden_state)[0].float()


class SeparateExperts(KernelSet):
    """Kernels that leave each expert a layer of its own, as an engine with adapters has them."""

    def grouping(self, sides: Sequence[Any]) -> None:
        return None


class AdaptedHarness:
    """A decoder with one adapter."""

    def __init__(self, path: Path, adapter: Path, kernels: KernelSet | None = None) -> None:
        self.harness = Harness(path, kernels or SeparateExperts(()))
        model = self.harness.model
        self.placed = PlacedAdapters(1, 64, torch.float32)
        self.placed.bind(model)
        loader = SafetensorsLoader()
        manifest = loader.resolve(str(path))
        names = weight_map(manifest, self.harness.spec)
        checkpoint = Checkpoint(names.loader(loader), names.manifest, self.harness.spec)
        device = torch.device("cpu")
        packing = Packing(self.harness.spec, WHOLE, None, model.kernels, "float32", torch.float32, device)

        def names_of(tensors: dict[str, Any]) -> Any:
            from msgspec.structs import replace

            return weight_map(replace(manifest, tensors=tensors), self.harness.spec, of_modules=True)

        fitting = Fitting(self.harness.spec, names, names_of, 64)
        outer = OuterChanges(self.placed, model.kernels, model.weights, "float32", device)
        reader = AdapterReader(
            {"peft": PeftFormat(), "gguf": GGUFFormat()},
            fitting,
            self.placed,
            outer,
            lambda parts, further=(): dict(own_tensors(checkpoint, packing, parts, further)),
        )
        facts = reader.read(AdapterSource("tried", str(adapter)))
        self.placed.place(facts.digest)

    def logits(self, prompt: Sequence[int], encodes: bool = False) -> Tensor:
        """float32 [T, V] of a prompt with the adapter; an encoder's hidden states."""
        self.placed.begin((0,), torch.zeros(len(prompt), dtype=torch.int32))
        run = self.harness.hidden if encodes else self.harness.logits
        return run([Piece(0, prompt, 0)])

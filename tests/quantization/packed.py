"""Kept checkpoints that real tools packed: opened by their method, and beside them the same models with plain weights."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from core.api.specs import DensePlan, LayerSpec, PartPlan
from core.plugin.hookspecs import LoadContext
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.models.families import decoder_spec
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.weights.formats import CanonicalWeight
from tests.models.harness import Harness

KEPT = Path(__file__).parents[1] / "checkpoints"
PROMPT = [3, 17, 98, 41, 5, 77, 23, 64, 110, 9]


class Packed:
    """One checkpoint, whose tensors have canonical names.

    hooks: the manifest of its method.
    """

    def __init__(self, path: Path, hooks: Any, dtype: str = "float32", activation: str = "auto") -> None:
        self.path = path
        self.manifest = SafetensorsLoader().resolve(str(path))
        arguments = hooks.core_spec().arguments(activation=activation)
        facts = self.manifest.facts()
        context = LoadContext(manifest=self.manifest, facts=facts, dtype=dtype, arguments=arguments)
        self.method = hooks.core_load(context)
        self.spec = decoder_spec(self.manifest.config)

    def resolve(self, ref: str) -> CheckpointManifest:
        """A loader of this checkpoint alone."""
        return self.manifest

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """As of every loader."""
        yield from SafetensorsLoader().iter(manifest, reads)

    def plans(self) -> dict[str, tuple[LayerSpec, PartPlan | DensePlan]]:
        """By name of a part."""
        return {part.name: (part, self.method.plan(part)) for part in self.spec.linears()}

    def weights(self) -> dict[str, CanonicalWeight]:
        """The packed parts, each of as many bytes as its plan says."""
        found = {}
        for name, (part, plan) in self.plans().items():
            if isinstance(plan, DensePlan):
                continue
            assert isinstance(plan, PartPlan), plan
            tensors = dict(self.iter(self.manifest, plan.reads))
            weight = self.method.pack(part, tensors)
            assert weight.nbytes == plan.nbytes and weight.shape == part.shape, name
            found[name] = weight
        return found

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Of every position, by reference kernels in float32."""
        harness = Harness(self.manifest.config, {}, method=self.method, loader=self)
        return harness.run([(ids, 0, list(range(1, 1 + len(ids))))])


def digest(matrix: torch.Tensor) -> str:
    """Of a matrix, by its bytes."""
    return hashlib.sha256(matrix.contiguous().numpy().tobytes()).hexdigest()


def differing(packed: Packed, dtype: torch.dtype) -> list[str]:
    """Modules whose matrix is not that of the tool, by the digests beside the checkpoint.

    dtype: in which the tool computes; a product of an integer and a scale is rounded to it once.
    """
    told = json.loads((packed.path / "digests.json").read_text())
    digests = told[str(dtype).removeprefix("torch.")]
    weights = packed.weights()
    assert weights.keys() >= digests.keys()
    found = []
    for name, expected in digests.items():
        matrix = weights[name].dequantize().to(dtype) + 0.0  # zero has no sign here
        if digest(matrix) != expected:
            found.append(name)
    return found


def check_tokens(packed: Packed, directory: Path) -> None:
    """32 tokens and all logits are those of the plain model with the same matrices, in transformers."""
    model = plain_model(packed, directory)
    ids = continued(model)
    found = packed.logits(ids)
    assert found[len(PROMPT) - 1 : -1].argmax(-1).tolist() == ids[len(PROMPT) :]
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def plain_model(packed: Packed, directory: Path) -> Any:
    """The same model in transformers, with plain float32 weights."""
    directory.mkdir()
    config = json.loads((packed.path / "config.json").read_text())
    for key in ("quantization_config", "dtype", "torch_dtype"):
        config.pop(key, None)
    (directory / "config.json").write_text(json.dumps(config))
    matrices = packed.weights()
    tensors = {f"{name}.weight": weight.dequantize() for name, weight in matrices.items()}
    for name, tensor in load_file(packed.path / "model.safetensors").items():
        module, _, suffix = name.rpartition(".")
        if module not in matrices and suffix in ("weight", "bias"):
            tensors[name] = tensor.float()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    loaded = AutoConfig.from_pretrained(directory)
    return AutoModelForCausalLM.from_pretrained(directory, config=loaded, dtype=torch.float32).eval()


def continued(model: Any, count: int = 32) -> list[int]:
    """The prompt and its greedy continuation in transformers."""
    ids = torch.tensor([PROMPT])
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        found = model.generate(ids, max_new_tokens=count, do_sample=False)
    return found[0].tolist()


def changed(
    source: Path,
    directory: Path,
    config: Callable[[dict[str, Any]], None] | None = None,
    **tensors: torch.Tensor | None,
) -> Path:
    """A copy of a checkpoint with another declaration or other tensors, by name with `__` for dots; None: without one."""
    directory.mkdir()
    written = json.loads((source / "config.json").read_text())
    if config is not None:
        config(written["quantization_config"])
    (directory / "config.json").write_text(json.dumps(written))
    state = load_file(source / "model.safetensors")
    with safe_open(source / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
    for name, tensor in tensors.items():
        dotted = name.replace("__", ".")
        if tensor is None:
            del state[dotted]
        else:
            state[dotted] = tensor
    save_file(state, directory / "model.safetensors", metadata=metadata)
    return directory

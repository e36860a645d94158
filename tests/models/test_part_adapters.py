"""Adapters of a model in 2, 4 and 8 parts have the bits that they have with the whole."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.api.adapters import AdapterSource
from core.api.errors import UserError
from core_runtime.executor.adapters.outer import OuterChanges
from core_runtime.executor.adapters.own_tensors import Parts
from core_runtime.executor.adapters.placed import PlacedAdapters
from core_runtime.executor.adapters.reading import AdapterReader
from core_runtime.executor.adapters.share import AdapterShare
from core_runtime.models.adapters.fitting import Fitted, NormPart, PartChange, WholePart
from core_runtime.models.adapters.layers import adapted_norms, adapted_parts
from core_runtime.models.adapters.whole_modules import whole_modules
from core_runtime.models.families import decoder_spec
from core_runtime.models.tensors.row_order import row_order
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.expert_placement import ExpertPlacement
from core_runtime.specs.model_part import Part
from core_runtime.weights.adapter_contents import AdapterContents, ModuleChange
from tests.models.harness import Harness
from tests.models.part_models import SEQUENCES, checkpoint, logits, parts_of, settings
from tests.models.test_part_bits import CONFIGS

RANKS = {"plain": 5, "all": 24}
"""Ranks of both adapters: one is a panel and a half, the other less than one."""


class Random:
    """An adapter that changes everything, with random numbers. name: `plain`: matrices alone, and of every other expert."""

    def __init__(self, spec: DecoderSpec, name: str) -> None:
        self.spec = spec
        self._name = name
        self._draw = torch.Generator().manual_seed(RANKS[name])

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._draw) * 0.1

    def matrices(self, module: str, outputs: int, inputs: int) -> ModuleChange:
        rank = RANKS[self._name]
        more: dict[str, Tensor] = {}
        if self._name == "all":
            more = {"magnitude": 1 + self.numbers(outputs), "added_bias": self.numbers(outputs)}
        return ModuleChange(module, self.numbers(rank, inputs), self.numbers(outputs, rank), 0.5, **more)

    def fit(self, name: str, contents: AdapterContents) -> Fitted:
        """In place of `Fitting.fit`."""
        found = Fitted()
        for part in adapted_parts(self.spec).values():
            if self._name == "all" or part.layer.expert % 2 or part.layer.expert < 0:
                change = self.matrices(part.part.name, *part.part.shape)
                found.layers.setdefault(part.layer, []).append(PartChange(part, part.part.name, change))
        if self._name == "plain":
            return found
        vocabulary, size = self.spec.embedding().shape
        ids = torch.randperm(vocabulary, generator=self._draw)[:7]
        found.embedding = ModuleChange(
            "embedding", self.numbers(3, vocabulary), self.numbers(size, 3), tokens=(ids, self.numbers(7, size))
        )
        found.head = ModuleChange(
            "head", self.numbers(3, size), self.numbers(vocabulary, 3), tokens=(ids, self.numbers(7, size)),
            magnitude=1 + self.numbers(vocabulary),
        )  # fmt: skip
        for module in whole_modules(self.spec):
            change = ModuleChange(module.module, weight=self.numbers(*module.shape))
            found.whole.setdefault(module.block, []).append(WholePart(module, change))
        for norm in adapted_norms(self.spec).values():
            if norm.part.spec.weighted:
                change = ModuleChange(norm.part.name, weight=1 + self.numbers(*norm.part.shape))
                found.norms[norm.key] = NormPart(norm, change)
        return found


class Named:
    """A format whose adapters are named by their paths."""

    def claims(self, path: str) -> bool:
        return True

    def read(self, path: str) -> AdapterContents:
        return AdapterContents(path, ())


def adapt(part: Harness, spec: DecoderSpec, state: Mapping[str, Tensor], own_part: Part, name: str) -> None:
    """Give both sequences the adapter that `name` says: `plain`, `all`, or one each (`both`)."""
    model = part.model
    placed = PlacedAdapters(2, 64, torch.float32)
    placed.bind(model)

    def own(parts: Parts, further: Sequence[str] = ()) -> Mapping[str, Tensor]:
        found = {}
        for layer, orders in parts:
            tensors = {f"{layer.name}.weight", *([f"{layer.name}.bias"] if layer.bias else ())}
            found |= {
                each: state[each][row_order(orders, len(state[each]))] if orders else state[each] for each in tensors
            }
        return found

    outer = OuterChanges(placed, model.kernels, model.weights, "float32", torch.device("cpu"))
    rows = {}
    for each in RANKS if name == "both" else (name,):
        fitting: Any = Random(spec, each)
        reader = AdapterReader({"named": Named()}, fitting, placed, outer, own, AdapterShare(spec, own_part))
        facts = reader.read(AdapterSource(each, each))
        placed.place(facts.digest)
        rows[each] = placed.rows[facts.digest]
    first, second = rows.get("all", rows.get("plain", 0)), rows.get("plain", -1)
    of_tokens = [first] * len(SEQUENCES[0][0]) + [second] * len(SEQUENCES[1][0])
    used = sorted(set(of_tokens) - {-1})
    placed.begin(used, torch.tensor(of_tokens, dtype=torch.int32))


def adapted(
    name: str,
    adapter: str,
    size: int,
    kernels: str = "native",
    experts: ExpertPlacement = ExpertPlacement(),  # noqa: B008
) -> Tensor:
    config, state = checkpoint(CONFIGS[name])
    spec = decoder_spec(config)
    if size == 1:
        whole = Harness(config, state, **settings(kernels))
        adapt(whole, spec, state, Part(), adapter)
        return whole.run(SEQUENCES)
    parts = parts_of(config, state, size, experts, **settings(kernels))
    for rank, part in enumerate(parts):
        adapt(part, spec, state, Part(rank, size, experts=experts), adapter)
    return logits(parts)


MODELS = sorted(CONFIGS.keys() - {"projected embeddings", "separate delta"})


@pytest.mark.parametrize("adapter", ["both", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_parts_have_the_bits_of_the_whole(name: str, adapter: str) -> None:
    whole = adapted(name, adapter, 1)
    assert not torch.equal(whole, Harness(*checkpoint(CONFIGS[name]), **settings("native")).run(SEQUENCES))
    for size in (2, 4, 8):
        assert torch.equal(adapted(name, adapter, size), whole), f"{size} parts"


@pytest.mark.parametrize("placement", [ExpertPlacement("round_robin"), ExpertPlacement(redundant=4)])
def test_bits_do_not_depend_on_where_experts_lie(placement: ExpertPlacement) -> None:
    found = adapted("gated shared expert", "both", 2, experts=placement)
    assert torch.equal(found, adapted("gated shared expert", "both", 1))


def test_a_rank_without_changed_experts_knows_of_them() -> None:
    """It computes them one by one, as a rank with all of them does."""
    spec = decoder_spec(CONFIGS["experts"].to_dict())
    part = next(one for one in adapted_parts(spec).values() if one.layer.expert == 3)
    fitted = Fitted(layers={part.layer: [PartChange(part, "experts.3", ModuleChange("experts.3"))]})
    for rank in range(2):
        share = AdapterShare(spec, Part(rank, 2))
        assert bool(share.layers(fitted)) is (rank == 0) and share.expert_blocks(fitted) == {part.layer.block}


def test_experts_that_move_are_refused() -> None:
    spec = decoder_spec(CONFIGS["experts"].to_dict())
    part = next(one for one in adapted_parts(spec).values() if one.layer.expert == 3)
    fitted = Fitted(layers={part.layer: [PartChange(part, "experts.3", ModuleChange("experts.3"))]})
    share = AdapterShare(spec, Part(1, 2, experts=ExpertPlacement(moves=True)))
    with pytest.raises(UserError, match=r"'a' changes experts.3, a matrix of an expert, and --enable-eplb moves"):
        share.check("a", fitted)


def test_a_stage_has_the_changes_of_its_blocks() -> None:
    spec = decoder_spec(CONFIGS["dense"].to_dict())
    fitted = Random(spec, "all").fit("", SimpleNamespace())  # type: ignore[arg-type]
    first, second = (AdapterShare(spec, Part(blocks=(index, index + 1))) for index in range(2))
    for number, share in enumerate((first, second)):
        layers = share.layers(fitted)
        assert {key.block for key in layers} == {0}
        assert {change.part.layer.block for parts in layers.values() for change, _ in parts} == {number}
    assert first.embedding(fitted.embedding) is not None and first.head(fitted.head) is None
    assert second.embedding(fitted.embedding) is None and second.head(fitted.head) is not None

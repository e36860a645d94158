"""Layers of the gated delta rule through flash-linear-attention, over a stand-in with the published signature."""

import importlib.util
import sys

import pytest
import torch

from core.api.specs import StateQuery
from core_attention.fla import manifest
from core_attention.fla.backend import FlaStates
from core_config.selection.reasons import state_reasons
from core_kit.checks import states as kit
from core_kit.checks.states import StateRun
from core_kit.oracles.numbers import close, generator
from core_kit.oracles.padding import Padding
from core_kit.oracles.state_formulas import EXAMPLES, FORMULAS
from tests.attention.libraries import fla_gated_delta_rule

SPEC = EXAMPLES["gated_delta"][0]
OTHER = EXAMPLES["kda"][0]


@pytest.fixture
def library(monkeypatch):
    """The stand-in in the place of the library."""
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", fla_gated_delta_rule)
    found = importlib.util.find_spec
    spec = fla_gated_delta_rule.__spec__
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: spec if name == "fla" else found(name))


def run_of(backend, lengths, padding=None, dtype=torch.float32):
    random = generator("fla")
    sequences = [torch.randn(length, SPEC.input_size, generator=random).to(dtype) for length in lengths]
    more = {} if padding is None else {"padding": padding}
    return StateRun(backend, SPEC, sequences, generator("blocks"), **more)


@pytest.mark.parametrize("padding", [None, Padding(2, 3)])
def test_prompts_and_what_follows_them_are_what_the_formula_says(library, padding):
    """The library computes the prompts, the own kernel the tokens after them, on the same states."""
    run = run_of(FlaStates("fla", least=1), (6, 1, 9), padding)
    first = run.step([(0, 0, 4), (1, 0, 1), (2, 0, 7)])
    then = run.step([(0, 4, 5), (2, 7, 8)])
    last = run.step([(0, 5, 6)])
    for index, got in ((0, [first[0], then[0], last[0]]), (1, [first[1]]), (2, [first[2], then[1]])):
        expected = FORMULAS["gated_delta"](SPEC, run.sequences[index], run.params)
        got = torch.cat(got)
        close(got, expected[: len(got)], kit.TOLERANCE, f"sequence {index}")


def test_chunks_go_on_from_each_others_states(library):
    run = run_of(FlaStates("fla", least=1), (8,))
    pieces = torch.cat([run.step([(0, start, start + 4)])[0] for start in (0, 4)])
    close(pieces, FORMULAS["gated_delta"](SPEC, run.sequences[0], run.params), kit.TOLERANCE, "two chunks")


def test_few_tokens_are_the_own_kernels(library, monkeypatch):
    """Steps that decode or verify drafts can then be recorded."""
    backend = FlaStates("fla")
    assert backend.capture == "uniform"
    monkeypatch.setattr(fla_gated_delta_rule, "chunk_gated_delta_rule", None)
    run_of(backend, (3, 1)).all()


def reasons(spec):
    query = StateQuery(spec, "cuda")
    return [str(reason) for reason in state_reasons(manifest.core_spec(), query) or manifest.core_supports(query)]


def test_what_it_serves(library):
    assert not reasons(SPEC)
    assert "state_op" in reasons(OTHER)[0]


def test_without_the_library(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None if name == "fla" else found(name))
    assert reasons(SPEC)[0].startswith("missing_library: needs fla-core")

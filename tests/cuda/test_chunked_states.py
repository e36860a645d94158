"""States that prompts advance in chunks, in the interpreter: the formula's numbers, whatever cuts at multiples of 64."""

import pytest

from core_kit.checks import states as kit
from core_kit.checks.states import StateRun
from core_kit.oracles.numbers import close, generator, same_bits
from core_kit.oracles.state_formulas import EXAMPLES, FORMULAS

pytest.importorskip("triton")
import torch

from core_attention.triton import manifest
from core_attention.triton.backend import TritonAttention

SPECS = [
    pytest.param(spec, marks=() if (op, number) == ("mamba2", 0) else pytest.mark.gpu_interpreter, id=f"{op} {number}")
    for op in ("gated_delta", "mamba2")
    for number, spec in enumerate(EXAMPLES[op])
]


def _run(spec, lengths, chunked=True):
    random = generator(spec.op)
    sequences = [torch.randn(length, spec.input_size, generator=random) for length in lengths]
    return StateRun(TritonAttention(chunked_states=chunked), spec, sequences, generator("blocks"))


@pytest.mark.parametrize("spec", SPECS)
def test_prompts_are_what_the_formula_says_and_cuts_between_chunks_change_no_bit(spec):
    run = _run(spec, (130, 1))
    outs = run.step([(0, 0, 130), (1, 0, 1)])
    for inputs, got in zip(run.sequences, outs, strict=True):
        close(got, FORMULAS[spec.op](spec, inputs, run.params), kit.TOLERANCE, spec.op)
    cut = _run(spec, (130, 1))
    first, other = cut.step([(0, 0, 64), (1, 0, 1)])
    (second,) = cut.step([(0, 64, 130)])
    same_bits(torch.cat([first, second]), outs[0], "cut after 64 tokens")
    same_bits(other, outs[1], "a short neighbour")
    same_bits(cut.raw, run.raw, "the states")


@pytest.mark.gpu_interpreter
def test_a_step_that_begins_and_ends_within_chunks_scans_there():
    spec = EXAMPLES["gated_delta"][0]
    run = _run(spec, (30, 200))
    got = [run.step([(0, 0, 20), (1, 0, 40)])[1]]
    got.append(run.step([(0, 20, 30), (1, 40, 170)])[1])
    got += [run.step([(1, start, start + 1)])[0] for start in range(170, 173)]
    expected = FORMULAS[spec.op](spec, run.sequences[1], run.params)
    close(torch.cat(got), expected[:173], kit.TOLERANCE, "chunks and scans by turns")


@pytest.mark.gpu_interpreter
def test_without_whole_chunks_the_bits_are_those_of_the_scan():
    spec = EXAMPLES["gated_delta"][0]
    spans = [(0, 0, 20), (1, 0, 5)]
    chunked, scanned = _run(spec, (20, 5)), _run(spec, (20, 5), chunked=False)
    for mine, expected in zip(chunked.step(spans), scanned.step(spans), strict=True):
        same_bits(mine, expected, "short prompts")


def test_the_mode_is_named():
    assert manifest.AttentionArguments().states == "scanned"
    assert TritonAttention().numerics == manifest.core_numerics({}) == manifest.core_numerics({"states": "scanned"})
    assert TritonAttention(chunked_states=True).numerics == manifest.core_numerics({"states": "chunked"})
    assert manifest.core_numerics({}) != manifest.core_numerics({"states": "chunked"})

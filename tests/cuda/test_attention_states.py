"""Layers with a state on Triton kernels, in the interpreter: the kit's checks of them."""

import pytest

from core_kit.checks import states as kit
from core_kit.checks.states import StateRun
from core_kit.oracles.numbers import close, generator, same_bits
from core_kit.oracles.state_formulas import EXAMPLES

pytest.importorskip("triton")
import torch

from core_attention.triton.backend import TritonAttention
from core_kit.oracles.state_formulas import FORMULAS
from tests.cuda.interpreted import Interpreted

SHORT = (13, 1, 2, 20)
"""Fewer tokens than elsewhere: the interpreter computes one after the other."""


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=() if op == "gated_delta" else pytest.mark.gpu_interpreter) for op in EXAMPLES]
)
def test_a_prompt_and_its_pieces_are_what_the_formula_says(op: str) -> None:
    spec = EXAMPLES[op][0]
    random = generator(op)
    sequences = [torch.randn(length, spec.input_size, generator=random) for length in (7, 1)]
    run = StateRun(TritonAttention(), spec, sequences, generator("blocks"))
    whole = run.all()
    for inputs, got in zip(sequences, whole, strict=True):
        close(got, FORMULAS[op](spec, inputs, run.params), kit.TOLERANCE, op)
    pieces = StateRun(TritonAttention(), spec, sequences[:1], generator("blocks")).all(2)
    same_bits(pieces[0], whole[0], f"{op} in pieces")


@pytest.mark.gpu_interpreter
@pytest.mark.parametrize("name", [check.__name__ for check in kit.CHECKS])
def test_the_kit_is_satisfied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "LENGTHS", SHORT)
    check = next(check for check in kit.CHECKS if check.__name__ == name)
    check(Interpreted())  # type: ignore[arg-type]

"""A tape of native calls: recorded once, replayed for other numbers of rows, with the bits of the calls themselves."""

import pytest
import torch

from core_platforms.cpu.tape import Tape, record
from core_runtime.weights.formats import Dense

WIDTH, ROWS = 48, 500  # more than run at a time


@pytest.fixture
def small_model(kernels):
    """A function that runs an embedding, a norm, products and gates on the first rows of fixed buffers."""
    torch.manual_seed(0)
    embedding = kernels.linear(Dense(torch.randn(20, WIDTH)), activation="none")
    up = kernels.linear(Dense(torch.randn(64, WIDTH).bfloat16()), activation="bf16")
    both = kernels.linear(Dense(torch.randn(64, WIDTH).bfloat16()), activation="bf16")
    down = kernels.linear(Dense(torch.randn(WIDTH, 32)), activation="none")
    ids, gain = torch.zeros(ROWS, dtype=torch.int64), torch.randn(WIDTH)
    x, wide, narrow = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, 64), torch.zeros(ROWS, 32)

    def run(rows: int) -> None:
        embedding.rows(ids[:rows], x[:rows])
        kernels.rms_norm(x[:rows], gain, 1e-5, x[:rows])
        up(x[:rows], wide[:rows])
        kernels.gated(wide[:rows], "silu", narrow[:rows])
        down(narrow[:rows], x[:rows], accumulate=True)
        both.gated(x[:rows], "gelu_tanh", narrow[:rows])
        down(narrow[:rows], x[:rows], accumulate=True)
        kernels.soft_cap(x[:rows], 30.0)

    return run, ids, x


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_tape_recorded_with_three_rows_repeats_the_calls_for_any_number(native, small_model, threads):
    run, ids, x = small_model
    native.pool_init(threads)
    ids[:3] = torch.tensor([4, 0, 19])
    tape = record(lambda: run(3), 3, 1)
    assert isinstance(tape, Tape) and tape.length == 8
    for rows in (1, 2, 3, 33, 96, 97, 145, 192, 193, 289, ROWS):
        ids[:rows] = torch.randint(0, 20, (rows,))
        run(rows)
        expected = x[:rows].clone()
        x.fill_(float("nan"))
        tape(rows, 1)
        assert torch.equal(x[:rows], expected)
        assert x[rows:].isnan().all()


def test_calls_outside_a_recording_are_not_on_the_tape(small_model):
    run, _, _ = small_model
    tape = record(lambda: run(2), 2, 1)
    run(2)
    assert tape is not None and tape.length == 8


def test_a_call_with_another_number_of_rows_makes_the_run_unrecordable(small_model):
    run, _, _ = small_model
    assert record(lambda: (run(3), run(2)), 3, 1) is None
    assert record(lambda: None, 3, 1) is None


def test_an_error_while_recording_ends_the_recording(small_model):
    run, ids, _ = small_model
    ids[0] = 20
    with pytest.raises(IndexError, match="row 20 of a weight with 20 rows"):
        record(lambda: run(1), 1, 1)
    ids[0] = 0
    tape = record(lambda: run(1), 1, 1)
    assert tape is not None and tape.length == 8
    ids[0] = -1
    with pytest.raises(IndexError, match="token id"):
        tape(1, 1)

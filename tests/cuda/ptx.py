"""The few instructions of PTX with which weights are decoded, on registers of many threads at once.

Owns: their meaning. Called by: tests of decoding, since Triton's interpreter runs no PTX.
"""

import re

import numpy as np
import torch

Registers = dict[str, np.ndarray]


def run(text: str, outputs: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs $0, $1, ... of a text whose further operands are `inputs`, all uint32 [threads]."""
    registers: Registers = {f"${outputs + place}": value for place, value in enumerate(inputs)}
    threads = len(inputs[0])
    body = text.strip().removeprefix("{").removesuffix("}")
    for statement in filter(None, (part.strip() for part in body.split(";"))):
        if statement.startswith(".reg"):
            continue
        name, _, operands = statement.partition(" ")
        target, *sources = re.split(r",\s*", operands)
        values = [_value(registers, source, threads) for source in sources]
        registers[target] = INSTRUCTIONS[name](*values)
    return [registers[f"${place}"] for place in range(outputs)]


def halves(words: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Two floats of 16 bits from each word, the lower half first: [threads, 2]."""
    return torch.from_numpy(words.view(np.int16).copy()).view(dtype).view(-1, 2)


def _value(registers: Registers, source: str, threads: int) -> np.ndarray:
    if source in registers:
        return registers[source]
    return np.full(threads, int(source, 0), np.uint32)


def _prmt(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    found = np.zeros_like(a)
    for place in range(4):
        nibble = int(selector[0]) >> (4 * place) & 15
        assert nibble < 8, "selectors that repeat a sign are not known here"
        found |= ((both >> np.uint64(8 * nibble)) & np.uint64(255)).astype(np.uint32) << np.uint32(8 * place)
    return found


def _lop3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    assert table[0] == 0xEA
    return (a & b) | c


def _fma(dtype: torch.dtype):
    def both(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        wide = [halves(words, dtype).double() for words in (a, b, c)]
        narrow = (wide[0] * wide[1] + wide[2]).to(dtype)
        return narrow.view(torch.int16).numpy().reshape(-1).view(np.uint32)

    return both


def _add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.view(np.float32) + b.view(np.float32)).view(np.uint32)


def _pair(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    both = torch.from_numpy(np.stack((low.view(np.float32), high.view(np.float32)), 1)).bfloat16()
    return both.view(torch.int16).numpy().reshape(-1).view(np.uint32)


INSTRUCTIONS = {
    "mov.b32": lambda a: a,
    "and.b32": np.bitwise_and,
    "xor.b32": np.bitwise_xor,
    "shr.b32": np.right_shift,
    "shl.b32": np.left_shift,
    "prmt.b32": _prmt,
    "lop3.b32": _lop3,
    "fma.rn.bf16x2": _fma(torch.bfloat16),
    "fma.rn.f16x2": _fma(torch.float16),
    "add.rn.f32": _add,
    "cvt.rn.bf16x2.f32": _pair,
}

"""Products that round their inputs themselves: the bits of `InputRounding` before the product, on every instruction set."""

import json
import math
from dataclasses import replace

import pytest
import torch

from core_platforms.cpu.experts import NativeExperts
from core_platforms.cpu.input_rounding import RULES
from core_platforms.cpu.native_linear import NativeLinear
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.prepared_linear import PreparedLinear
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.formats import Dense, IntGroups
from core_runtime.weights.input_order import InputOrder
from core_runtime.weights.input_rounding import NUMBERS, InputRounding
from core_runtime.weights.prepared_inputs import PreparedInputs
from tests.quantization.inputs_grid import grid

CASES = [
    InputRounding(
        numbers, rule, group, scale=0.37, zero=-3 if rule == "fixed" and numbers.startswith("int") else 0, bound=bound
    )
    for numbers in NUMBERS
    for rule in RULES
    for group in (0, 8, 24, 64)
    for bound in (math.inf, 2.5)
    if (rule != "range" or numbers.startswith("int")) and (rule != "fixed" or not group)
]


def rough(inputs):
    """Rows of many sizes, and the last ones of what goes wrong: the largest and smallest numbers, zeros, NaN, infinities."""
    x = torch.cat([grid(48, 256)[:, :inputs], torch.randn(5, inputs)])
    x[50, 3], x[51, 5], x[52, 7] = math.nan, math.inf, -math.inf
    x[49] = -0.0
    x[48, :16] = 1e-42
    x[47] = 3e38 * torch.linspace(-1, 1, inputs)
    return x


@pytest.mark.parametrize("rule", RULES)
def test_bits_are_those_of_the_reference(kernels, isa, rule):
    """A diagonal matrix shows each rounded number, a full one that products read them."""
    inputs = 192
    x = rough(inputs)
    sane = x[:47]
    full = Dense(torch.randn(40, inputs) / inputs)
    plain = kernels.linear(full, activation="none")
    for case in (case for case in CASES if case.rule == rule):
        each = kernels.linear(Dense(torch.eye(inputs)), activation="none")
        product = kernels.linear(full, activation="none")
        assert each.round_inputs(case) and product.round_inputs(case)
        out, expected, found = torch.empty(47, inputs), torch.empty(47, 40), torch.empty(47, 40)
        each(sane, out)
        assert torch.equal(out, case(sane)), case
        plain(case(x)[:47], expected)
        product(sane, found)
        assert torch.equal(found, expected), case


@pytest.mark.parametrize("rule", RULES)
def test_numbers_beyond_the_finite_are_those_of_the_reference(kernels, isa, rule):
    """Row by row of one input: a product with other inputs would mix them."""
    x = rough(64)[47:]
    for case in (case for case in CASES if case.rule == rule):
        one = torch.zeros(1, 64)
        for column in (3, 5, 7, 20):
            one.zero_()[0, column] = 1
            product = kernels.linear(Dense(one), activation="none")
            assert product.round_inputs(replace(case, group_size=0 if case.group_size == 24 else case.group_size))
            rounded = product.rounding(x)
            finite = rounded.isfinite().all(1)
            found = torch.empty(len(x), 1)
            product(x, found)
            assert torch.equal(found[finite, 0], rounded[finite, column]), case
            assert not found[~finite].isfinite().any(), case


@pytest.mark.parametrize("activation", ["none", "int8"])
def test_an_order_of_inputs_comes_behind_the_rounding(kernels, isa, activation):
    values = torch.randint(0, 256, (40, 96), dtype=torch.uint8)
    order = InputOrder.of(torch.randperm(96))
    weight = IntGroups(8, 32, values, (torch.rand(40, 3) * 0.01).half(), None, 128, order=order)
    step = InputRounding("fp4", "fp8", 16, scale=3.0)
    x = grid(20, 96)
    rounding, plain = (kernels.linear(weight, activation=activation) for _ in range(2))
    assert rounding.round_inputs(step)
    found, expected = torch.empty(20, 40), torch.empty(20, 40)
    rounding(x, found)
    plain(step(x), expected)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("activation", ["none", "bf16"])
def test_what_follows_a_product_reads_rounded_inputs(kernels, isa, activation):
    """A gate in the same call, and inputs that the product rounds again to bfloat16."""
    weight, step = Dense(torch.randn(128, 100).bfloat16()), InputRounding("fp8_e4m3", "divide")
    x = torch.randn(7, 100)
    rounding, plain = (kernels.linear(weight, activation=activation) for _ in range(2))
    assert rounding.round_inputs(step)
    for width, call in ((64, "gated"), (128, "activated")):
        found, expected = torch.empty(7, width), torch.empty(7, width)
        getattr(rounding, call)(x, "silu", found)
        getattr(plain, call)(step(x), "silu", expected)
        assert torch.equal(found, expected)


def test_groups_that_do_not_divide_the_inputs_are_not_served(kernels):
    product = kernels.linear(Dense(torch.randn(8, 100)), activation="none")
    assert not product.round_inputs(InputRounding("fp4", "even", 32)) and product.rounding is None


def test_the_set_makes_one_kernel_that_can_be_recorded(kernels):
    """Steps before the rounding stay steps; kernels that round nothing get theirs in front of them."""
    step, first = InputRounding("int8", "divide"), InputRounding("fp8_e4m3", "divide")
    weight = PreparedInputs(Dense(torch.randn(8, 64)), (step,))
    native = KernelSet([kernels])
    assert isinstance(native.linear(weight, activation="none"), NativeLinear)
    two = native.linear(replace(weight, steps=(first, step)), activation="none")
    assert isinstance(two, PreparedLinear)
    slow = KernelSet([ReferenceKernels()]).linear(weight, activation="none")
    assert isinstance(slow, PreparedLinear)
    x, found, expected = torch.randn(3, 64), torch.empty(3, 8), torch.empty(3, 8)
    two(x, found)
    kernels.linear(weight.weight, activation="none")(step(first(x)), expected)
    assert torch.equal(found, expected)


def experts_of(kernels, steps, count=6, inner=40, hidden=64, **options):
    """A layer, and its kernels of each expert: without rounding, for the comparison."""
    set_of = KernelSet([kernels])
    gate_up = [Dense(torch.randn(2 * inner, hidden) / 8) for _ in range(count)]
    down = [Dense(torch.randn(hidden, inner) / 8) for _ in range(count)]
    sides = [
        [
            Linear([set_of.linear(PreparedInputs(w, (step,)), activation="none")])
            for w, step in zip(side, steps, strict=True)
        ]
        for side in (gate_up, down)
    ]
    layer = set_of.experts(*sides, "silu", **options)
    assert isinstance(layer, NativeExperts)
    plain = [[kernels.linear(w, activation="none") for w in side] for side in (gate_up, down)]
    return layer, plain


@pytest.mark.parametrize("weight_inputs", [False, True])
@pytest.mark.parametrize(
    "steps",
    [
        [InputRounding("fp8_e4m3", "fixed", scale=0.01 * (1 + expert)) for expert in range(6)],
        [InputRounding("fp4", "fp8", 8, scale=1.0 + expert) for expert in range(6)],
        [InputRounding("fp8_e4m3", "divide")] * 6,
        [InputRounding("int8", "range", 8)] * 6,
    ],
    ids=["static", "nvfp4", "rows", "groups"],
)
def test_each_expert_rounds_its_own_inputs(kernels, isa, steps, weight_inputs):
    """One choice a token, so that nothing is summed: exactly the two products of its expert."""
    layer, (gate_up, down) = experts_of(kernels, steps, weight_inputs=weight_inputs)
    x, ids = torch.randn(50, 64), torch.randint(0, 6, (50, 1))
    weights = torch.rand(50, 1) + 0.5 if weight_inputs else torch.ones(50, 1)
    out, expected = torch.empty(50, 64), torch.empty(50, 64)
    layer(x, ids, weights, out)
    for token, expert in enumerate(ids[:, 0].tolist()):
        inner, last = torch.empty(1, 40), torch.empty(1, 64)
        rows = x[token : token + 1] * (weights[token] if weight_inputs else 1)
        both = torch.empty(1, 80)
        gate_up[expert](steps[expert](rows), both)
        kernels.gated(both, "silu", inner)
        down[expert](steps[expert](inner), last)
        expected[token] = last[0]
    assert torch.equal(out, expected)
    alone = torch.empty(1, 64)
    for token in range(5):
        layer(x[token : token + 1], ids[token : token + 1], weights[token : token + 1], alone)
        assert torch.equal(alone[0], out[token])


PAGE = 4096


def saved(kernels, step):
    """A kernel in memory of its own, and its saved form as it comes back from a file."""
    weight = Dense(torch.randn(40, 64))
    size = kernels.prepared_nbytes(weight, activation="none")
    room = torch.empty(size + PAGE, dtype=torch.uint8)
    start = -room.data_ptr() % PAGE
    kernel = kernels.linear(weight, activation="none", into=room[start : start + size])
    assert kernel.round_inputs(step)
    form = kernels.save(kernel, PreparedInputs(weight, (step,)), activation="none", bias=None, segments=1)
    return kernel, replace(form, facts=json.loads(json.dumps(form.facts, allow_nan=False)))


@pytest.mark.parametrize(
    "step", [InputRounding("fp8_e4m3", "inverse"), InputRounding("int8", "fixed", 0, 0.25, 3, 2.0)]
)
def test_a_saved_kernel_still_rounds(kernels, step):
    kernel, form = saved(kernels, step)
    restored, x = kernels.restore(form), torch.randn(5, 64)
    found, expected = torch.empty(5, 40), torch.empty(5, 40)
    restored(x, found)
    kernel(x, expected)
    assert restored.rounding == step and torch.equal(found, expected)


@pytest.mark.parametrize(
    "damage",
    [
        {"numbers": "fp9"}, {"rule": "guess"}, {"rule": ["divide"]}, {"group_size": -1}, {"group_size": 7}, {"scale": 0},
        {"scale": "1"}, {"scale": None}, {"zero": 1 << 40}, {"bound": -1.0}, {"bound": True}, {"more": 1},
    ],
)  # fmt: skip
def test_a_damaged_description_is_refused(kernels, damage):
    _, form = saved(kernels, InputRounding("fp8_e4m3", "divide", 8))
    broken = replace(form, facts={**form.facts, "inputs": {**form.facts["inputs"], **damage}})
    with pytest.raises(ValueError, match="describes"):
        kernels.restore(broken)
    with pytest.raises(ValueError, match="describes no rounding"):
        kernels.restore(replace(form, facts={**form.facts, "inputs": None}))

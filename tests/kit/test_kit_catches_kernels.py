"""Kernel providers that cheat are found by the check that is meant to find them, and by a sentence."""

import pytest

from core_kit import cases
from core_kit.checks.kernels import CHECKS
from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import failing, plugin

KERNELS = (TEMPLATES / "kernels/core_my_plugin/kernels.py").read_text()
KERNEL_CHEATS = {
    "drops the bias": ([("total += self.bias", "pass")], "linear equals"),
    "forgets to accumulate": ([("out += total", "out.copy_(total)")], "linear equals"),
    "drops the minimum": ([("total += part.sum", "0 * part.sum")], "linear equals"),
    "takes every device": ([('if query.device != "cpu":', "if False:")], "is refused with a reason"),
    "tells too few bytes": (
        [("self.shape, self.nbytes = weight.shape, weight.nbytes", "self.shape, self.nbytes = weight.shape, 1")],
        "tells the bytes",
    ),
    "depends on company": (
        [("total = torch.zeros(len(x)", "total = len(x) * 1e-7 + torch.zeros(len(x)")],
        "alone and among",
    ),
}

BUILD = "\ndef build(module): return module.CheatKernels()\n"
EVERY = """
import math
import torch
from dataclasses import replace
from core.api.reason import Reason
from core.api.sampling_params import SamplingParams
from core_runtime.layers.experts import ReferenceExperts
from core_runtime.layers.linear import Linear
from core_runtime.layers.low_rank import ReferenceLowRank
from core_runtime.layers.reference import ReferenceKernels, ReferenceLinear
from core_runtime.sampling.filters import survivors
from core_runtime.sampling.noise import NoiseKey
from core_runtime.sampling.race import Entrant, winners
from core_runtime.weights.formats import Codebook, FP8, Int8Channel

FORMATS = ("float32", "float16", "bfloat16", "int4_groups", "int8_groups", "int8_channel", "fp8_e4m3", "fp8_e5m2",
           "nf4", "fp4", "mxfp4", "nvfp4")
OPERATIONS = ("linear", "soft_cap", "take_rows", "race", "logprobs", "route", "experts", "low_rank")

class CheatKernels(ReferenceKernels):
    name = numerics = "cheat-1"

    def supports(self, query):
        known = query.device == "cpu" and query.op in OPERATIONS
        return [] if known and query.format in ("", *FORMATS) else [Reason("layer", "another")]

    def linear(self, weight, *, activation, bias=None):
        held = weight
        linear = ReferenceLinear(held, activation, bias)
        linear.nbytes = weight.nbytes
        return linear

    def soft_cap(self, x, cap):
        x.div_(cap).tanh_().mul_(cap)

    def take_rows(self, x, rows, out):
        out.copy_(x[rows])

    def route(self, logits, routing, bias, ids, weights):
        super().route(logits, routing, bias, ids, weights)

    def race(self, logits, which, keys, temperatures, out, filters=None):
        entrants = []
        for i, row in enumerate(which.tolist()):
            low, high, index, choice, _ = keys[i].tolist()
            z, ids = ((logits[row] - logits[row].max()) / temperatures[i]).numpy(), None
            if filters is not None:
                top_k, top_p, least = (table[i].item() for table in filters)
                ids, z = survivors(z, SamplingParams(top_k=top_k, top_p=top_p, min_p=math.exp(least)))
            entrants.append(Entrant(NoiseKey(low | high << 32, index, choice), z, ids))
        out.copy_(torch.tensor(winners(entrants)))

    def masked_race(self, logits, which, keys, temperatures, out, filters=None, masks=None):
        competing = logits[which].clone()
        words, index = masks
        for i, place in enumerate(index.tolist()):
            if place >= 0:
                bits = words[place][:, None] >> torch.arange(32) & 1
                competing[i][bits.flatten()[: logits.shape[1]] == 0] = -torch.inf
        self.race(competing, torch.arange(len(which)), keys, temperatures, out, filters)

    def logprobs(self, logits, which, chosen, counts, ids, values, ranks):
        for i, row in enumerate(which.tolist()):
            told = logits[row].double().log_softmax(-1)
            top = torch.sort(logits[row], descending=True, stable=True).indices[: counts[i]]
            ids[i, : counts[i] + 1] = torch.cat([chosen[i : i + 1], top])
            values[i] = told[ids[i]]
            ranks[i] = 1 + (logits[row] > logits[row, chosen[i]]).sum()

    def experts(self, gate_up, down, activation):
        sides = [[Linear([kernel]) for kernel in side] for side in (gate_up, down)]
        return ReferenceExperts(*sides, activation, self.gated)

    def low_rank(self, form):
        return ReferenceLowRank(form)
"""
HELD = "held = weight\n"
EVERY_CHEAT = {
    "gates the wrong half in one call": (
        [
            (
                "        linear.nbytes = weight.nbytes\n",
                "        linear.nbytes = weight.nbytes\n"
                "        def gated(x, gate, out):\n"
                "            both = torch.empty(len(x), weight.shape[0])\n"
                "            linear(x, both)\n"
                "            self.gated(both.roll(out.shape[1], 1), gate, out)\n"
                "        linear.gated = gated if weight.shape[0] == 64 else None\n",
            )
        ],
        ("linear equals",),
        "in one call",
    ),
    "rounds no inputs": (
        [
            (
                "        linear.nbytes = weight.nbytes\n",
                "        linear.nbytes = weight.nbytes\n        linear.round_inputs = lambda step: True\n",
            )
        ],
        ("rounds its inputs itself",),
        "inputs as fp8_e4m3 by rule fixed",
    ),
    "forgets the scale of a row": (
        [(HELD, "held = replace(weight, row_scale=None) if weight.name == 'nvfp4' else weight\n")],
        ("linear equals", "rows gives"),
        "nvfp4",
    ),
    "takes another table": (
        [(HELD, "held = replace(weight, kind='fp4') if weight.name == 'nf4' else weight\n")],
        ("linear equals", "rows gives"),
        "nf4",
    ),
    "swaps the nibbles": (
        [
            (
                HELD,
                "held = weight if weight.name != 'mxfp4' else "
                "replace(weight, values=(weight.values >> 4) | (weight.values << 4))\n",
            )
        ],
        ("linear equals", "rows gives"),
        "mxfp4",
    ),
    "takes one scale for all blocks": (
        [
            (
                HELD,
                "held = weight if not isinstance(weight, FP8) else "
                "replace(weight, scale=weight.scale[:, :1].expand(weight.scale.shape).contiguous())\n",
            )
        ],
        ("linear equals", "rows gives"),
        "fp8_e4m3",
    ),
    "reads e5m2 as e4m3": (
        [
            (
                HELD,
                "held = weight if weight.name != 'fp8_e5m2' else "
                "replace(weight, values=weight.values.view(torch.uint8).view(torch.float8_e4m3fn))\n",
            )
        ],
        ("linear equals",),
        "fp8_e5m2",
    ),
    "takes channels for unsigned": (
        [(HELD, "held = weight if weight.name != 'int8_channel' else replace(weight, values=weight.values.abs())\n")],
        ("linear equals", "rows gives"),
        "int8_channel",
    ),
    "needs an even number of inputs": (
        [("return linear", "assert weight.shape[1] % 2 == 0, 'odd inputs'\n        return linear")],
        ("linear equals",),
        "odd inputs",
    ),
    "keeps a wide copy": (
        [("linear.nbytes = weight.nbytes", "linear.nbytes = 4 * weight.shape[0] * weight.shape[1] + 9000")],
        ("tells the bytes",),
        "bytes",
    ),
    "caps half": ([(".tanh_().mul_(cap)", ".tanh_().mul_(cap / 2)")], ("small operations",), "soft_cap"),
    "norms into packed rows": (
        [
            ('OPERATIONS = ("linear",', 'OPERATIONS = ("linear", "rms_norm",'),
            (
                "    def soft_cap(",
                "    def rms_norm(self, x, weight, eps, out):\n"
                "        packed = torch.as_strided(out, x.shape, (x.shape[1], 1))\n"
                "        super().rms_norm(x, weight, eps, packed)\n\n    def soft_cap(",
            ),
        ],
        ("small operations",),
        "rms_norm of 17 rows",
    ),
    "gates into packed rows": (
        [
            ('OPERATIONS = ("linear",', 'OPERATIONS = ("linear", "gated",'),
            (
                "    def soft_cap(",
                "    def gated(self, x, activation, out):\n"
                "        packed = torch.as_strided(out, out.shape, (out.shape[1], 1))\n"
                "        super().gated(x, activation, packed)\n\n    def soft_cap(",
            ),
        ],
        ("small operations",),
        "gated of 17 rows",
    ),
    "takes the rows in order": ([("x[rows]", "x[: len(rows)]")], ("small operations",), "take_rows"),
    "prefers the last of equals": (
        [
            ("super().route(logits, ", "ids.zero_()\n        super().route(logits.flip(-1), "),
            (
                "bias, ids, weights)\n\n    def race",
                "bias if bias is None else bias.flip(-1), ids, weights)\n"
                "        ids.neg_().add_(logits.shape[1] - 1)\n\n    def race",
            ),
        ],
        ("route chooses",),
        "token 0",
    ),
    "routes without a bias": (
        [("super().route(logits, routing, bias,", "super().route(logits, routing, None,")],
        ("route chooses",),
        "with a bias",
    ),
    "always renormalizes": (
        [("bias, ids, weights)\n\n", "bias, ids, weights)\n        weights /= weights.sum(-1, keepdim=True)\n\n")],
        ("route chooses",),
        "not renormalized",
    ),
    "trips over NaN": (
        [("bias, ids, weights)\n\n", "bias, ids, weights)\n        ids[logits.isnan().any(-1)] = -1\n\n")],
        ("whatever the logits are",),
        "nan",
    ),
    "forgets half of the seed": ([("low | high << 32", "low")], ("race draws",), "without filters"),
    "ignores top-p": ([("top_p=top_p", "top_p=1.0")], ("race draws",), "with filters"),
    "ignores the temperature": ([(" / temperatures[i]", "")], ("race draws",), "without filters"),
    "masks every row": ([("if place >= 0", "if True")], ("masked_race equals",), "with masks"),
    "turns the bits of a mask round": (
        [("torch.arange(32) &", "torch.arange(31, -1, -1) &")],
        ("masked_race equals",),
        "with masks",
    ),
    "counts ranks from zero": ([("ranks[i] = 1 +", "ranks[i] = 0 +")], ("logprobs tells",), "rank"),
    "prefers the higher id": (
        [("torch.sort(logits[row],", "499 - torch.sort(logits[row].flip(-1),")],
        ("logprobs tells",),
        "ids",
    ),
    "tells logits": ([(".log_softmax(-1)", "")], ("logprobs tells",), "away"),
    "drops tokens": (
        [
            (
                "return ReferenceExperts(*sides, activation, self.gated)",
                "return Dropping(*sides, activation, self.gated)\n\n"
                "class Dropping(ReferenceExperts):\n"
                "    def __call__(self, x, ids, weights, out, *, accumulate=False):\n"
                "        early = (ids.flatten() == ids.flatten()[:, None]).tril(-1).sum(-1) < 25\n"
                "        super().__call__(x, ids, weights * early.view(ids.shape), out, accumulate=accumulate)\n",
            )
        ],
        ("experts equals",),
        "one expert for all tokens",
    ),
    "takes one gate for another": (
        [("ReferenceExperts(*sides, activation,", "ReferenceExperts(*sides, 'silu',")],
        ("experts equals",),
        "gelu_tanh",
    ),
    "forgets an adapter's bias": (
        [
            (
                "return ReferenceLowRank(form)",
                "class Forgetful(ReferenceLowRank):\n"
                "            def _apply(self, update, x, out):\n"
                "                super()._apply(replace(update, shift=None), x, out)\n"
                "        return Forgetful(form)",
            )
        ],
        ("low_rank equals",),
        "differs by",
    ),
    "keeps adapters": (
        [
            (
                "return ReferenceLowRank(form)",
                "class Keeping(ReferenceLowRank):\n"
                "            def clear(self, row):\n"
                "                pass\n"
                "        return Keeping(form)",
            )
        ],
        ("a cleared row",),
        "a cleared row",
    ),
    "hides memory": (
        [
            (
                "return ReferenceExperts(*sides, activation, self.gated)",
                "layer = ReferenceExperts(*sides, activation, self.gated)\n"
                "        layer.nbytes = 7\n        return layer",
            )
        ],
        ("experts equals",),
        "tells 7 bytes",
    ),
}


@pytest.mark.parametrize("changes, titles, subject", EVERY_CHEAT.values(), ids=EVERY_CHEAT)
def test_formats_and_optional_operations(tmp_path, changes, titles, subject):
    source = plugin(tmp_path, "kernels", EVERY, changes, ", capabilities={'devices': ['cpu']}")
    for words in titles:
        sentence = failing(tmp_path, "kernels", source + BUILD, words)
        assert subject in sentence


def test_an_honest_provider_passes(tmp_path):
    source = plugin(tmp_path, "kernels", EVERY, (), ", capabilities={'devices': ['cpu']}")
    path = tmp_path / "cheat.py"
    path.write_text(source + BUILD)
    found = [case.finding() for case in cases("kernels", "cheat", plugins=str(path))[-len(CHECKS) :]]
    assert {f.check for f in found if f.verdict == "skipped"} == {
        "With `batch_invariant`: a row's bits are the same alone and among others",
        "With `batch_invariant`: low_rank gives a row the bits that it has by itself, whatever adapters other rows have",
        "A product that a table joins with its updates has the bits of both calls",
        "A product that rounds its inputs itself has the bits of the rounding followed by the product",
    }
    assert [f for f in found if f.verdict == "failed"] == []


ALL = ["float32", "float16", "bfloat16", "int4_groups", "int8_groups", "int8_channel", "fp8_e4m3", "fp8_e5m2"]
ALL += ["nf4", "fp4", "mxfp4", "nvfp4"]
DECLARED = {
    "too few": (ALL[1:], (), "serves 'float32' undeclared"),
    "too many": (ALL, [('"mxfp4", "nvfp4")', '"mxfp4")')], "declares 'nvfp4' but serves it nowhere"),
}


@pytest.mark.parametrize("declared, changes, sentence", DECLARED.values(), ids=DECLARED)
def test_declared_formats_are_those_that_are_served(tmp_path, declared, changes, sentence):
    source = plugin(
        tmp_path, "kernels", EVERY, changes, f", capabilities={{'devices': ['cpu'], 'formats': {declared}}}"
    )
    source += BUILD
    assert sentence in failing(tmp_path, "kernels", source, "every format that it declares")


@pytest.mark.parametrize("changes, words", KERNEL_CHEATS.values(), ids=KERNEL_CHEATS)
def test_kernels(tmp_path, changes, words):
    capabilities = ", capabilities={'devices': ['cpu'], 'batch_invariant': True}"
    source = plugin(tmp_path, "kernels", KERNELS, changes, capabilities) + BUILD
    failing(tmp_path, "kernels", source, words)

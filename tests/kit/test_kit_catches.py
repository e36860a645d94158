"""The kit's checks can fail: each cheat below is found by the check that is meant to find it, and by a sentence."""

import pytest

from core_kit import Subject
from core_kit.case import Case
from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import failing, plugin

METHOD = (TEMPLATES / "quantization/core_my_plugin/method.py").read_text()
PROPOSER = (TEMPLATES / "speculative/core_my_plugin/proposer.py").read_text()
POLICY = (TEMPLATES / "policy/core_my_plugin/policy.py").read_text()
PLATFORM = (TEMPLATES / "platform/core_my_plugin/platform.py").read_text()

METHODS = {
    "forgets the scales": ([("n * k + n * k // self.group_size * 2", "n * k")], "exactly the planned bytes"),
    "rounds badly": (
        [("torch.round(groups / scale.float())", "torch.round(groups / scale.float() / 9).mul(9)")],
        "dequantize to the",
    ),
    "divides by zero": (
        [(".clamp_min(6e-8).half()", ".half() / (groups.abs().amax(-1, keepdim=True) > 0)")],
        "Zeros, tiny and large",
    ),
    "changes its input": (
        [("(weight,) = tensors.values()", "(weight,) = tensors.values()\n        weight += 1")],
        "leaves the tensors alone",
    ),
    "lies about keys": (
        [("scale.squeeze(-1), None, ZERO", "scale.squeeze(-1), None, ZERO - ('k_proj' in spec.name)")],
        "equal fuse keys",
    ),
    "takes the scales of other groups in a format of its own": (
        [
            (
                "ZERO = 128\n",
                "ZERO = 128\n\nclass Own(IntGroups):\n    name = 'own'\n    def dequantize(self):\n"
                "        scale = self.scale.float().flip(1).repeat_interleave(self.group_size, 1)\n"
                "        return (self.unpacked().float() - self.zero) * scale\n",
            ),
            ('"int8_groups"', '"own"'),
            ("return IntGroups(", "return Own("),
        ],
        "dequantize to the",
    ),
    "takes the scales of other rows in a format of its own": (
        [
            (
                "ZERO = 128\n",
                "ZERO = 128\n\nclass Own(IntGroups):\n    name = 'own'\n    def dequantize(self):\n"
                "        scale = self.scale.float().roll(1, 0).repeat_interleave(self.group_size, 1)\n"
                "        return (self.unpacked().float() - self.zero) * scale\n",
            ),
            ('"int8_groups"', '"own"'),
            ("return IntGroups(", "return Own("),
        ],
        "dequantize to the",
    ),
    "mistakes the shape": ([("values.view(n, k)", "values.view(n, k)[:-1]")], "exactly the planned bytes"),
}
PROPOSERS = {
    "exceeds its budget": (
        [
            ("while len(chain) < budget", "while len(chain) < budget + 1"),
            (" and chain.count(followers[token]) < self.repeat", ""),
        ],
        "never longer than the budget",
    ),
    "drafts beyond the vocabulary": ([("chain.append(token)", "chain.append(token + 300)")], "never longer than the"),
    "shares its state": (
        [("followers = self._followers[key]", "followers = next(iter(self._followers.values()))")],
        "beside it",
    ),
    "cannot forget twice": ([("self._followers.pop(key, None)", "self._followers.pop(key)")], "are no errors"),
}
WEIGHTS = {
    "holds weights that nobody plans": (
        "",
        "torch.zeros(300, 300)",
        "holds 360000 bytes of weights that no memory plan",
    ),
    "tells too few": ("return 90000", "torch.zeros(300, 300)", "tells 90000 bytes, the loaded object holds 360000"),
    "tells a view only": ("return 40000", "torch.zeros(300, 300)[:100, :100]", "holds 360000"),
    "hides them in a module": ("", "[{'a': torch.nn.Linear(256, 256)}]", "holds 263168"),
    "tells nonsense": ("return -1", "None", "core_weights_nbytes answered -1, expected a number of bytes or None"),
}
POLICIES = {
    "throws dice": ([("return len(", "import random\n        return random.randrange(99) + len(")], "The same arrivals")
}
PLATFORMS = {
    "takes any device": ([("if device not in", "if device in ('nothing',) and device not in")], "does not exist"),
    "leaves dirt": ([("torch.zeros(nbytes", "torch.ones(nbytes")], "zeroed bytes"),
    "plans another dtype": ([("return torch.float32", "return torch.float64")], "dtype that it declares"),
}


@pytest.mark.parametrize("changes, words", METHODS.values(), ids=METHODS)
def test_methods(tmp_path, changes, words):
    source = plugin(tmp_path, "quantization", METHOD, changes) + "\ndef build(module): return module.Method(32)\n"
    failing(tmp_path, "quantization", source, words)


@pytest.mark.parametrize("changes, words", PROPOSERS.values(), ids=PROPOSERS)
def test_proposers(tmp_path, changes, words):
    source = plugin(tmp_path, "speculative", PROPOSER, changes) + "\ndef build(module): return module.Proposer(2)\n"
    failing(tmp_path, "speculative", source, words)


@pytest.mark.parametrize("tells, holds, sentence", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_of_proposers(tmp_path, tells, holds, sentence):
    source = plugin(tmp_path, "speculative", PROPOSER) + "\ndef build(module):\n    import torch\n"
    source += f"    proposer = module.Proposer(2)\n    proposer.weights = {holds}\n    return proposer\n"
    if tells:
        source += f"@hookimpl\ndef core_weights_nbytes(facts):\n    {tells}\n"
    assert sentence in failing(tmp_path, "speculative", source, "counts its own weights")


@pytest.mark.parametrize("changes, words", POLICIES.values(), ids=POLICIES)
def test_policies(tmp_path, changes, words):
    source = plugin(tmp_path, "policy", POLICY, changes) + "\ndef build(module): return module.Policy()\n"
    failing(tmp_path, "policy", source, words)


@pytest.mark.parametrize("changes, words", PLATFORMS.values(), ids=PLATFORMS)
def test_platforms(tmp_path, changes, words):
    source = plugin(tmp_path, "platform", PLATFORM, changes, ", capabilities={'activation_dtype': 'float32'}")
    source += "\n@hookimpl\ndef core_probe(): return Probe((Device('cheat:0', 'a device', 1 << 30),))\n"
    source += "def build(module): return module.CheatPlatform(1)\n"
    failing(tmp_path, "platform", source, words)


MANIFESTS = {
    "misspells a capability": (", capabilities={'kv_dtype': ['float32']}", "", "capabilities whose names"),
    "declares a word for a list": (", capabilities={'devices': 'cpu'}", "", "capabilities whose names"),
    "claims everything": ("", "@hookimpl\ndef core_claim(facts): return 'mine'\n", "It claims neither"),
    "has a hook of another kind": ("", "@hookimpl\ndef core_probe(): return Probe()\n", "Every hook it has"),
    "has an argument without words": (
        ", arguments=Arguments",
        "import msgspec\nclass Arguments(msgspec.Struct, frozen=True):\n    size: int = 1\n",
        "Its own arguments",
    ),
    "has a default that it refuses": (
        ", arguments=Arguments",
        "import msgspec\nfrom typing import Annotated\nclass Arguments(msgspec.Struct, frozen=True):\n"
        "    size: Annotated[int, msgspec.Meta(ge=2, description='Size.')] = 1\n",
        "Its own arguments",
    ),
}


@pytest.mark.parametrize("spec, code, words", MANIFESTS.values(), ids=MANIFESTS)
def test_manifests(tmp_path, spec, code, words):
    source = (
        plugin(tmp_path, "quantization", METHOD, (), spec) + code + "\ndef build(module): return module.Method(32)\n"
    )
    failing(tmp_path, "quantization", source, words)


def test_outcomes_are_told_apart():
    from core_kit import Failure, Skipped
    from core_kit.case import Warned

    def outcome(error):
        def run(subject):
            raise error

        finding = Case(Subject("loader", "any"), "a check", run).finding()
        return finding.verdict, finding.sentence

    assert outcome(Failure("broken")) == ("failed", "broken")
    assert outcome(Skipped("not here")) == ("skipped", "not here")
    assert outcome(Warned("dear")) == ("warned", "dear")
    assert outcome(SystemExit("bye")) == ("failed", "SystemExit: bye")
    assert outcome(ZeroDivisionError()) == ("failed", "ZeroDivisionError: without a word")

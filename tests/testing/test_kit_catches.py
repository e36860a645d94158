"""The kit's checks can fail: each cheat below is found by the check that is meant to find it, and by a sentence."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from core.testing import Subject, cases
from core.testing.case import Case
from core.testing.skeleton import TEMPLATES, renamed

EXTERNAL = Path(__file__).parents[1] / "external"
HEADER = """
from core.api.reason import Reason
from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl
CONTRACT = 1
"""


def plugin(tmp_path, kind, code, changes=(), spec=""):
    """A plugin in one file: a template's implementation with some words changed, and a manifest around it."""
    text = renamed(code, "cheat", kind) if code else ""
    for old, new in changes:
        assert old in text, f"'{old}' is no longer in the template"
        text = text.replace(old, new)
    (tmp_path / "implementation.py").write_text(text)
    manifest = f"""
    import importlib.util, sys
    KIND = {kind!r}
    @hookimpl
    def core_spec():
        return PluginSpec(name="cheat", summary="it cheats"{spec})
    @hookimpl
    def core_load(context):
        name = "implementation_of_cheat_" + {str(abs(hash(str(tmp_path))))!r}
        spec = importlib.util.spec_from_file_location(name, {str(tmp_path / "implementation.py")!r})
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return build(module)
    """
    return HEADER + textwrap.dedent(manifest)


def verdicts(tmp_path, kind, source, **options):
    path = tmp_path / "cheat.py"
    path.write_text(source)
    skipped = ("A freshly spawned", "The manifest is light")
    found = [
        case.finding()
        for case in cases(kind, "cheat", plugins=str(path), **options)
        if not str(case).startswith(skipped)
    ]
    return {finding.check: finding for finding in found}


METHOD = (TEMPLATES / "quantization/core_my_plugin/method.py").read_text()
BACKEND = (TEMPLATES / "attention/core_my_plugin/backend.py").read_text()
STATE_BACKEND = (
    (EXTERNAL.parents[1] / "plugins/attention/torch_sdpa/states.py").read_text()
    + """

import dataclasses

class States:
    name = numerics = "cheat"
    def state_layout(self, spec, dtype):
        return spec.state_bytes
    def bind_state(self, spec, dtype, raw, params):
        return ShortConv(spec, raw, params)
    def build_state(self, view):
        return StateMetadata(view)
    def forward_state(self, handle, inputs, metadata, out):
        handle.forward(inputs, metadata, out)
"""
)
LATENT_BACKEND = (EXTERNAL / "latent_pages/core_latent_pages/backend.py").read_text()
KERNELS = (TEMPLATES / "kernels/core_my_plugin/kernels.py").read_text()
PROPOSER = (TEMPLATES / "speculative/core_my_plugin/proposer.py").read_text()
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
    "mistakes the shape": ([("values.view(n, k)", "values.view(n, k)[:-1]")], "exactly the planned bytes"),
}
BACKENDS = {
    "ignores windows": ([("if spec.window is not None:", "if False:")], "claims to support equals"),
    "ignores the scale": ([("* spec.scale", "")], "claims to support equals"),
    "reads beyond the end": (
        [
            (".flatten(0, 1)[:length].float()", ".flatten(0, 1).float()"),
            ("key = torch.arange(length)", "key = torch.arange(len(k))"),
        ],
        "claims to support equals",
    ),
    "writes elsewhere": ([("block, offset = ", "handle.keys[-1] = 0\n        block, offset = ")], "its own slots"),
    "takes more memory": ([("return KVLayout(2 *", "return KVLayout(4 *")], "more bytes than the memory plan"),
    "sees the future": ([("hidden = key > query", "hidden = key > query + 1")], "claims to support equals"),
    "changes its input": ([("block, offset = ", "k += 1\n        block, offset = ")], "leaves q, k and v alone"),
}
READ = "self.states.read(step.view)"
STATE_BACKENDS = {
    "ignores a factor": ([("out.copy_(c * y)", "out.copy_(y)")], "equal their formula"),
    "forgets what was before a chunk": ([(READ, f"0 * {READ}")], "state: prompts in chunks"),
    "forgets the newest token": ([("padded[after])", "padded[after - 1])")], "state: prompts in chunks"),
    "mixes neighbours": ([(READ, f"{READ}.flip(0)")], "a neighbour"),
    "takes up an old state": (
        [(READ, "self.states.read(dataclasses.replace(step.view, query_lens=[0] * step.view.num_seqs))")],
        "starts from nothing",
    ),
    "writes elsewhere": (
        [("self.states.write(", "self.states.raw[-1] = 0\n        self.states.write(")],
        "its sequences alone",
    ),
    "takes more memory": ([("return spec.state_bytes", "return spec.state_bytes + 4")], "than planned"),
    "changes its input": ([("b, c, x = inputs", "inputs += 1\n        b, c, x = inputs")], "equal their formula"),
}
LATENT_BACKENDS = {
    "forgets the rotated key": (
        [("torch.cat([q_latent[mine], q_pe[mine]], -1)", "torch.cat([q_latent[mine], 0 * q_pe[mine]], -1)")],
        "claims to support equals",
    ),
    "ignores the scale": ([("* handle.scale", "")], "claims to support equals"),
    "sees the future": ([("keys > positions", "keys > positions + 1")], "claims to support equals"),
    "reads beyond the end": ([("[table[number], :, : length - first]", "[table[number]]")], "claims to support equals"),
    "forgets what was before a chunk": (
        [
            (
                "range(-(-length // block_size))",
                "range(max(0, length - len(query)) // block_size, -(-length // block_size))",
            )
        ],
        "Prompts in chunks",
    ),
    "writes elsewhere": (
        [("        page, column", "        handle.pages[-1] = 0\n        page, column")],
        "its own slots",
    ),
    "takes more memory": (
        [("return KVLayout(block_size", "return KVLayout(2 * block_size")],
        "more bytes than the memory plan",
    ),
    "changes its input": (
        [("        page, column", "        c += 1\n        page, column")],
        "leaves q, k and v alone",
    ),
}
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
PROPOSERS = {
    "exceeds its budget": (
        [
            ("while len(chain) < budget", "while len(chain) < budget + 1"),
            (" and chain.count(followers[token]) < self.repeat", ""),
        ],
        "never longer than the budget",
    ),
    "shares its state": (
        [("followers = self._followers[key]", "followers = next(iter(self._followers.values()))")],
        "beside it",
    ),
    "cannot forget twice": ([("self._followers.pop(key, None)", "self._followers.pop(key)")], "are no errors"),
}
PLATFORMS = {
    "takes any device": ([("if device not in", "if device in ('nothing',) and device not in")], "does not exist"),
    "leaves dirt": ([("torch.zeros(nbytes", "torch.ones(nbytes")], "zeroed bytes"),
    "plans another dtype": ([("return torch.float32", "return torch.float64")], "dtype that it declares"),
}


def failing(found, words):
    """The finding whose title has `words` failed, with a sentence."""
    (finding,) = [finding for check, finding in found.items() if words in check]
    assert finding.verdict == "failed" and finding.sentence.strip(), finding
    assert "Traceback" not in finding.sentence


@pytest.mark.parametrize("changes, words", METHODS.values(), ids=METHODS)
def test_methods(tmp_path, changes, words):
    source = plugin(tmp_path, "quantization", METHOD, changes) + "\ndef build(module): return module.Method(32)\n"
    failing(verdicts(tmp_path, "quantization", source), words)


@pytest.mark.parametrize("changes, words", BACKENDS.values(), ids=BACKENDS)
def test_backends(tmp_path, changes, words):
    capabilities = ", capabilities={'devices': ['cpu'], 'kv_dtypes': ['float32'], 'cap': False, 'block_sizes': [8]}"
    source = plugin(tmp_path, "attention", BACKEND, changes, capabilities)
    source += "\n@hookimpl\ndef core_supports(query):\n    same = query.spec.head_size == query.spec.head_size_v\n"
    source += (
        "    return [] if same else [Reason('head_size_v', 'the same')]\ndef build(module): return module.Backend()\n"
    )
    failing(verdicts(tmp_path, "attention", source), words)


@pytest.mark.parametrize("changes, words", STATE_BACKENDS.values(), ids=STATE_BACKENDS)
def test_state_backends(tmp_path, changes, words):
    capabilities = ", capabilities={'layer_kinds': ['state'], 'state_ops': ['short_conv']}"
    source = plugin(tmp_path, "attention", STATE_BACKEND, changes, capabilities)
    failing(verdicts(tmp_path, "attention", source + "\ndef build(module): return module.States()\n"), words)


def test_an_op_of_its_own_needs_an_example(tmp_path):
    capabilities = ", capabilities={'layer_kinds': ['state'], 'state_ops': ['spiral']}"
    source = plugin(tmp_path, "attention", STATE_BACKEND, (), capabilities)
    found = verdicts(tmp_path, "attention", source + "\ndef build(module): return module.States()\n")
    (finding,) = [finding for check, finding in found.items() if "state: prompts in chunks" in check]
    assert finding.verdict == "failed" and "example_state" in finding.sentence


@pytest.mark.parametrize("changes, words", LATENT_BACKENDS.values(), ids=LATENT_BACKENDS)
def test_latent_backends(tmp_path, changes, words):
    capabilities = ", capabilities={'layer_kinds': ['latent'], 'kv_dtypes': ['float32']}"
    source = plugin(tmp_path, "attention", LATENT_BACKEND, changes, capabilities)
    failing(verdicts(tmp_path, "attention", source + "\ndef build(module): return module.LatentPages()\n"), words)


@pytest.mark.parametrize("changes, words", KERNEL_CHEATS.values(), ids=KERNEL_CHEATS)
def test_kernels(tmp_path, changes, words):
    capabilities = ", capabilities={'devices': ['cpu'], 'batch_invariant': True}"
    source = (
        plugin(tmp_path, "kernels", KERNELS, changes, capabilities)
        + "\ndef build(module): return module.CheatKernels()\n"
    )
    failing(verdicts(tmp_path, "kernels", source), words)


@pytest.mark.parametrize("changes, words", PROPOSERS.values(), ids=PROPOSERS)
def test_proposers(tmp_path, changes, words):
    source = plugin(tmp_path, "speculative", PROPOSER, changes) + "\ndef build(module): return module.Proposer(2)\n"
    failing(verdicts(tmp_path, "speculative", source), words)


@pytest.mark.parametrize("changes, words", PLATFORMS.values(), ids=PLATFORMS)
def test_platforms(tmp_path, changes, words):
    source = plugin(tmp_path, "platform", PLATFORM, changes, ", capabilities={'activation_dtype': 'float32'}")
    source += "\n@hookimpl\ndef core_probe(): return Probe((Device('cheat:0', 'a device', 1 << 30),))\n"
    source += "def build(module): return module.CheatPlatform(1)\n"
    failing(verdicts(tmp_path, "platform", source), words)


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
    failing(verdicts(tmp_path, "quantization", source), words)


def test_outcomes_are_told_apart():
    from core.testing import Failure, Skipped
    from core.testing.case import Warned

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

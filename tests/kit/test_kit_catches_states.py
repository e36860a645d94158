"""Backends of layers with a state that cheat are found by the check that is meant to find them, and by a sentence."""

import pytest

from tests.kit.cheats import failing, plugin
from tests.layout import ROOT

STATES = ROOT / "plugins/attention/core_attention/torch_sdpa/states"


def module_of(*names: str) -> str:
    """One module's text made of several: their imports of one another are dropped."""
    lines = ["from __future__ import annotations"]
    for name in names:
        text = (STATES / name).read_text()
        lines += [line for line in text.splitlines() if "__future__" not in line and "torch_sdpa.states" not in line]
    return "\n".join(lines)


STATE_BACKEND = (
    module_of("step.py", "stored.py", "convolution.py", "short_conv.py")
    + """

import dataclasses

class States:
    name = numerics = "cheat"
    moves_states = True
    def state_layout(self, spec, dtype):
        return spec.state_bytes
    def bind_state(self, spec, dtype, raw, params):
        return ShortConv(spec, StoredStates(spec, dtype, raw), params)
    def build_state(self, view):
        return StateMetadata(view)
    def forward_state(self, handle, inputs, metadata, out):
        handle.forward(inputs, metadata, out)
"""
)
EXAMPLE = """
    def example_state(self, op):
        return StateSpec(op=op, inputs={"x": 4}, output_size=4, state_size=4)
"""
READ = "self.states.read(step.view)"
WRITE = "self.states.write(step.view, window)"
SOURCES = "step.view.block_table if step.view.state_sources is None else step.view.state_sources"
ROWS = "zip(step.view.block_table[:, 0].tolist(), step.view.seq_lens_list, step.view.query_lens)"
REMEMBERED = (
    "torch.stack([torch.zeros(self.convolution.past * self.channels) if length == count else self.kept[block]"
    f" for block, length, count in {ROWS}])"
)
STATE_BACKENDS = {
    "ignores a factor": ([(".copy_(c * y)", ".copy_(y)")], "equal their formula"),
    "forgets what was before a chunk": ([(READ, f"0 * {READ}")], "state: prompts in chunks"),
    "forgets the newest token": (
        [("return y, padded[after]", "return y, padded[after - 1]")],
        "state: prompts in chunks",
    ),
    "mixes neighbours": ([(READ, f"{READ}.flip(0)")], "a neighbour"),
    "writes where it reads": (
        [(WRITE, f"self.states.write(dataclasses.replace(step.view, block_table={SOURCES}), window)")],
        "blocks in which a state is read",
    ),
    "takes up an old state": (
        [(READ, "self.states.read(dataclasses.replace(step.view, query_lens=[0] * step.view.num_seqs))")],
        "starts from nothing",
    ),
    "writes elsewhere": (
        [("self.states.write(", "self.states._store.raw[-1] = 0\n        self.states.write(")],
        "its sequences alone",
    ),
    "keeps states elsewhere as well": (
        [
            ("self.convolution = Conv", "self.kept = {}\n        self.convolution = Conv"),
            (READ, REMEMBERED),
            (WRITE, f"{WRITE}\n        self.kept.update(zip(step.view.block_table[:, 0].tolist(), window))"),
        ],
        "a copy of its bytes",
    ),
    "clears the blocks that it is bound to": (
        [("return ShortConv(", "raw.zero_()\n        return ShortConv(")],
        "bound once more",
    ),
    "takes more memory": ([("return spec.state_bytes", "return spec.state_bytes + 4")], "than planned"),
    "changes its input": ([("b, c, x = inputs", "inputs += 1\n        b, c, x = inputs")], "equal their formula"),
}
NARROW = {
    "forgets to round what a chunk passes on": [("= as_stored(newest, self.dtype)", "= newest")],
    "takes more memory": [("return spec.bytes_in(dtype)", "return spec.bytes_in(dtype) + 2")],
}
PADDED = {
    "writes states of padded sequences": [
        ("num_seqs=num_seqs,", "num_seqs=len(view.query_lens),"),
        ("[:num_seqs]", "[:]"),
    ],
    "reads padded rows": [("inputs[:num_tokens]", "inputs - 0 * inputs.sum()")],
}
BUILD = "\ndef build(module): return module.States()\n"


@pytest.mark.parametrize("changes, words", STATE_BACKENDS.values(), ids=STATE_BACKENDS)
def test_state_backends(tmp_path, changes, words):
    capabilities = ", capabilities={'layer_kinds': ['state'], 'state_ops': ['short_conv']}"
    source = plugin(tmp_path, "attention", STATE_BACKEND, changes, capabilities)
    failing(tmp_path, "attention", source + BUILD, words)


@pytest.mark.parametrize("changes", NARROW.values(), ids=NARROW)
def test_states_of_16_bits(tmp_path, changes):
    types = "'state_dtypes': ['float32', 'bfloat16']"
    capabilities = f", capabilities={{'layer_kinds': ['state'], 'state_ops': ['short_conv'], {types}}}"
    source = plugin(
        tmp_path, "attention", STATE_BACKEND.replace("spec.state_bytes", "spec.bytes_in(dtype)"), changes, capabilities
    )
    failing(tmp_path, "attention", source + BUILD, "in each of `state_dtypes`")


def test_an_op_of_its_own_needs_an_example(tmp_path):
    capabilities = ", capabilities={'layer_kinds': ['state'], 'state_ops': ['spiral']}"
    source = plugin(tmp_path, "attention", STATE_BACKEND, (), capabilities)
    assert "example_state" in failing(tmp_path, "attention", source + BUILD, "state: prompts in chunks")


def test_every_op_that_is_declared_must_be_served(tmp_path):
    capabilities = ", capabilities={'layer_kinds': ['state'], 'state_ops': ['short_conv', 'spiral']}"
    source = plugin(tmp_path, "attention", STATE_BACKEND + EXAMPLE, (), capabilities)
    source += "\n@hookimpl\ndef core_supports(query):\n"
    source += "    return [] if query.spec.op == 'short_conv' else [Reason('state_op', 'another')]\n"
    assert "'spiral'" in failing(tmp_path, "attention", source + BUILD, "state: prompts in chunks")


@pytest.mark.parametrize("changes", PADDED.values(), ids=PADDED)
def test_padding(tmp_path, changes):
    capabilities = ", capabilities={'layer_kinds': ['state'], 'state_ops': ['short_conv'], 'padding': True}"
    source = plugin(tmp_path, "attention", STATE_BACKEND, changes, capabilities)
    failing(tmp_path, "attention", source + BUILD, "with `padding`")

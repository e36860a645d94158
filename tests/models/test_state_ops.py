"""The state operations against transformers' own layers, each family's sizes being read from its configuration."""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from core.api.errors import UserError
from core.api.specs import StateSpec
from core_attention.torch_sdpa.backend import TorchSDPA
from core_kit.checks.states import StateRun
from core_kit.oracles.numbers import generator
from core_models import minimax
from core_runtime.models.state_layers import delta, mamba1, mamba2
from core_runtime.models.state_ops.gated_delta import gated_delta as gated_delta_layer
from core_runtime.models.state_ops.mamba2 import mamba2 as mamba2_layer
from core_runtime.models.tensors.row_order import row_order
from core_runtime.specs.mixer_parts import state_parts

HIDDEN = 40
LENGTHS = (19, 8, 1)
LIMIT = 2e-5
COMMON = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
PREFIXED = {
    "mamba_n_heads": 6, "mamba_d_head": 10, "mamba_d_state": 7, "mamba_n_groups": 2, "mamba_d_conv": 3,
    "mamba_chunk_size": 8,
}  # fmt: skip
EXPANDED = {**PREFIXED, "mamba_n_heads": 8, "mamba_proj_bias": True, "rms_norm_eps": 1e-3}
LIMITS = {"time_step_limit": (0.3, 1.5)}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = {
    **LINEAR,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 9,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
    "rms_norm_eps": 1e-3,
}
PLAIN = {"state_size": 5, "conv_kernel": 3, "time_step_rank": 4, "expand": 3}


@dataclass
class Case:
    """One family's layer in transformers.

    reader: our function for it.
    family: the module of transformers.
    mixer: its class there.
    config: beside `COMMON`.
    renames: parameters of the op that the module calls differently.
    output: its last projection.
    arguments: of the class.
    given: further inputs of the layer.
    """

    reader: Callable[[dict[str, Any], int], StateSpec | None]
    family: str
    mixer: str
    config: dict[str, Any]
    model_type: str = ""
    renames: dict[str, str] = field(default_factory=dict)
    output: str = "out_proj"
    arguments: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)


KIMI = {
    "f_a_proj": "forget_gate.f_a_proj",
    "f_b_proj.weight": "forget_gate.f_b_proj.weight",
    "A_log": "forget_gate.A_log",
    "dt_bias": "forget_gate.dt_bias",
}
FALCON_H1 = {
    **PREFIXED,
    **LIMITS,
    "mamba_d_ssm": 60,
    "ssm_multipliers": [0.7, 1.3, 0.9, 1.1, 0.6],
    "ssm_in_multiplier": 1.4,
    "projectors_bias": True,
}
CASES = {
    "mamba2": Case(
        mamba2.mamba2,
        "mamba2",
        "Mamba2Mixer",
        {
            **LIMITS, "num_heads": 8, "head_dim": 10, "state_size": 7, "n_groups": 2, "conv_kernel": 3,
            "chunk_size": 8, "use_bias": True, "use_conv_bias": False, "layer_norm_epsilon": 1e-3,
        },
    ),
    "bamba": Case(mamba2.bamba, "bamba", "BambaMixer", {**EXPANDED, **LIMITS, "attn_layer_indices": [1]}),
    "granitemoehybrid": Case(
        mamba2.granitemoehybrid,
        "granitemoehybrid",
        "GraniteMoeHybridMambaLayer",
        {**EXPANDED, **LINEAR, "mamba_conv_bias": False},
    ),
    "nemotron_h": Case(
        mamba2.nemotron_h,
        "nemotron_h",
        "NemotronHMamba2Mixer",
        {
            "mamba_num_heads": 6, "mamba_head_dim": 10, "ssm_state_size": 7, "n_groups": 3, "conv_kernel": 5,
            "chunk_size": 8, "use_bias": True, "time_step_min": 0.4, "layer_norm_epsilon": 1e-3,
            "layers_block_type": ["linear_attention", "mlp"],
        },
    ),
    "falcon_h1, gate alone": Case(mamba2.falcon_h1, "falcon_h1", "FalconH1Mixer", FALCON_H1),
    "falcon_h1, gate after the norm": Case(
        mamba2.falcon_h1, "falcon_h1", "FalconH1Mixer", {**FALCON_H1, "mamba_rms_norm": True, "rms_norm_eps": 1e-3}
    ),
    "falcon_h1, gate before the norm": Case(
        mamba2.falcon_h1,
        "falcon_h1",
        "FalconH1Mixer",
        {**FALCON_H1, "mamba_d_ssm": None, "mamba_n_heads": 8, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "mamba": Case(mamba1.mamba, "mamba", "MambaMixer", {**PLAIN, "use_bias": True, "use_conv_bias": False}),
    "falcon_mamba": Case(
        mamba1.falcon_mamba,
        "falcon_mamba",
        "FalconMambaMixer",
        {**PLAIN, "use_bias": True, "mixer_rms_eps": 1e-3},
        arguments={"initialize_mixer_weights": False},
    ),
    "jamba": Case(
        mamba1.jamba,
        "jamba",
        "JambaMambaMixer",
        {
            "mamba_d_state": 5, "mamba_d_conv": 3, "mamba_expand": 3, "mamba_dt_rank": 4, "mamba_proj_bias": True,
            "rms_norm_eps": 1e-3, "attn_layer_period": 2, "attn_layer_offset": 1,
        },
    ),
    "qwen3_next": Case(delta.qwen3_next, "qwen3_next", "Qwen3NextGatedDeltaNet", DELTA),
    "qwen3_5": Case(delta.qwen3_5, "qwen3_5", "Qwen3_5GatedDeltaNet", DELTA, model_type="qwen3_5_text"),
    "olmo_hybrid": Case(
        delta.olmo_hybrid,
        "olmo_hybrid",
        "OlmoHybridGatedDeltaNet",
        DELTA,
        renames={"norm.weight": "o_norm.weight"},
        output="o_proj",
    ),
    "kimi_linear": Case(
        delta.kimi_linear,
        "kimi_linear",
        "KimiLinearDeltaAttention",
        {**LINEAR, "linear_head_dim": 9, "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-3},
        renames=KIMI,
        output="o_proj",
    ),
    "minimax": Case(
        minimax.lightning_layer,
        "minimax",
        "MiniMaxLightningAttention",
        {**LINEAR, "head_dim": 6, "block_size": 5},
        given={"position_embeddings": None, "attention_mask": None},
    ),
}  # fmt: skip


def randomize(module: torch.nn.Module, random: torch.Generator) -> None:
    """Every parameter, each about as large as in a trained model."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=random)
            if "norm" in name:
                parameter.copy_(1 + 0.3 * noise)
            elif parameter.dim() == 2 and "A_log" not in name:
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
            else:
                parameter.copy_(0.6 * noise)


class Layer:
    """A layer of transformers with random weights, and what our op takes of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        config = AutoConfig.for_model(case.model_type or case.family, **COMMON, **case.config)
        self.hf_config = json.loads(config.to_json_string(use_diff=False))
        modeling = importlib.import_module(f"transformers.models.{case.family}.modeling_{case.family}")
        self.module = getattr(modeling, case.mixer)(config, layer_idx=0, **case.arguments).eval()
        if case.family == "falcon_h1":
            self.module.register_buffer("mup_vector", modeling.compute_mup_vector(config))
        self.random = generator(case.mixer)
        randomize(self.module, self.random)
        spec = case.reader(self.hf_config, 0)
        assert spec is not None
        self.spec = spec
        self.state = {name: tensor.detach() for name, tensor in self.module.state_dict().items()}

    def params(self) -> dict[str, Tensor]:
        """The op's tensors, under its own names and in its shapes."""
        found = {}
        sizes = [
            self.spec.params[f"{part}_conv1d.weight"][0] for part in "qkv" if "q_conv1d.weight" in self.spec.params
        ]
        for name, shape in self.spec.params.items():
            if "_conv1d" in name:
                parts = self.state["conv1d.weight"].split(sizes)
                found[name] = parts["qkv".index(name[0])]
            else:
                found[name] = self.state[self.case.renames.get(name, name)].view(shape)
        return found

    def projected(self, x: Tensor) -> Tensor:
        """The op's input [L, W] of x [L, hidden]."""
        outputs = []
        parts = state_parts(self.spec, "layer", HIDDEN)
        for part in parts.linears["in"]:
            name = part.name.removeprefix("layer.")
            y = self._linear(self.case.renames.get(name, name), x, part.bias)
            assert y.shape[1] == part.shape[0]
            outputs.append(y[:, row_order(parts.orders.get(part.name, ()), y.shape[1])])
        return torch.cat(outputs, 1)

    def finished(self, y: Tensor) -> Tensor:
        """The layer's output [L, hidden] of the op's."""
        (part,) = state_parts(self.spec, "layer", HIDDEN).linears["out"]
        return self._linear(self.case.output, y, part.bias)

    def _linear(self, name: str, x: Tensor, bias: bool) -> Tensor:
        assert bias == (f"{name}.bias" in self.state), name
        y = x @ self.state[f"{name}.weight"].t()
        return y + self.state[f"{name}.bias"] if bias else y


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_an_op_is_the_layer_of_transformers(name):
    """Whole prompts in company equal transformers; chunks, singles and loneliness change no bit."""
    layer = Layer(CASES[name])
    hidden = [torch.randn(length, HIDDEN, generator=layer.random) for length in LENGTHS]
    sequences = [layer.projected(x) for x in hidden]
    params = layer.params()

    def run(sequences: list[Tensor] = sequences) -> StateRun:
        return StateRun(TorchSDPA(), layer.spec, sequences, generator(name), params=params)

    whole = run().all()
    for x, y in zip(hidden, whole, strict=True):
        expected = layer.module(x[None], **layer.case.given)
        if isinstance(expected, tuple):
            expected, *_ = expected
        expected = expected[0] if expected.dim() == 3 else expected
        torch.testing.assert_close(layer.finished(y), expected, rtol=LIMIT, atol=LIMIT)
    for chunk in (1, 3, 7):
        for mine, expected in zip(run().all(chunk), whole, strict=True):
            assert torch.equal(mine, expected)
    alone = run(sequences[:1])
    prefill = alone.step([(0, 0, 12)])
    decoded = [alone.step([(0, position, position + 1)])[0] for position in range(12, LENGTHS[0])]
    assert torch.equal(torch.cat([*prefill, *decoded]), whole[0])


@pytest.mark.parametrize(
    "reader, hf_config, with_state",
    [
        (mamba2.bamba, {"attn_layer_indices": [1, 2]}, [True, False, False, True]),
        (mamba2.granitemoehybrid, {"layer_types": ["mamba", "attention"]}, [True, False]),
        (mamba2.granitemoehybrid, {"layers_block_type": ["attention", "mamba"]}, [False, True]),
        (mamba2.nemotron_h, {"hybrid_override_pattern": "M-*ME"}, [True, False, False, True, False]),
        (mamba1.jamba, {"attn_layer_period": 3, "attn_layer_offset": 1}, [True, False, True, True, False]),
        (delta.qwen3_next, {}, [True, True, True, False, True]),
        (delta.qwen3_5, {"full_attention_interval": 2}, [True, False, True, False]),
        (delta.olmo_hybrid, {"num_hidden_layers": 3}, [True, True, False]),
        (delta.kimi_linear, {}, [True, True, True, True, False]),
        (delta.kimi_linear, {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1]}}, [True, False]),
    ],
)
def test_layers_with_a_state(reader, hf_config, with_state):
    """Configurations of both ages say which layers these are."""
    assert [reader(hf_config, index) is not None for index in range(len(with_state))] == with_state


@pytest.mark.parametrize("name", CASES)
def test_defaults_are_those_of_transformers(name):
    """An absent key means what the configuration class of transformers says."""
    case = CASES[name]
    config = AutoConfig.for_model(case.model_type or case.family)
    written = json.loads(config.to_json_string(use_diff=False))
    assert case.reader({}, 0) == case.reader(written, 0)


def test_layers_of_published_checkpoints():
    """Sizes that the configurations of large models spell differently."""
    kimi = {"linear_attn_config": {"head_dim": 64, "num_heads": 16, "short_conv_kernel_size": 3}}
    spec = delta.kimi_linear(kimi, 0)
    assert (spec.sizes["key_size"], spec.sizes["heads"], spec.sizes["kernel"]) == (64, 16, 3)
    nemotron = mamba2.nemotron_h({"mamba_n_groups": 4, "mamba_d_conv": 3, "mamba_dt_min": 0.5}, 0)
    assert (nemotron.sizes["groups"], nemotron.sizes["kernel"], nemotron.numbers["dt_min"]) == (4, 3, 0.5)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: mamba2_layer(heads=6, head_size=4, state=8, groups=4), "6 heads in 4 groups"),
        (lambda: mamba2_layer(heads=6, head_size=1, state=8, norm_groups=4), "norms 6 numbers in 4 groups"),
        (
            lambda: gated_delta_layer(key_heads=2, value_heads=3, key_size=4, value_size=4),
            "3 value heads for 2 key heads",
        ),
        (lambda: mamba2.mamba2({"time_step_limit": [0]}, 0), "time_step_limit is .* expected 2 numbers"),
        (lambda: mamba2.bamba({"time_step_limit": [0, "x"]}, 0), "time_step_limit has 'x'"),
        (lambda: mamba2.bamba({"hidden_act": "gelu"}, 0), "hidden_act is 'gelu'"),
        (lambda: mamba2.falcon_h1({"mamba_proj_bias": True, "ssm_in_multiplier": 2.0}, 0), "ssm_in_multiplier is 2.0"),
        (lambda: mamba1.mamba({"time_step_rank": -1}, 0), "time_step_rank is -1"),
        (lambda: delta.qwen3_next({"layer_types": ["full_attention"]}, 1), "a word for each layer"),
    ],
)
def test_what_does_not_fit_is_refused(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()

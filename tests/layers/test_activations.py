"""The names of activations mean what transformers computes; a wrong name is refused by a sentence."""

import pytest
import torch
from transformers.activations import ACT2FN, XIELUActivation
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

from core_runtime.layers import activations

THEIRS = {
    "silu": "silu", "gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu", "relu2": "relu2",
    "quick_gelu": "quick_gelu",
}  # fmt: skip


@pytest.mark.parametrize("name", THEIRS)
def test_words_mean_what_transformers_computes(name):
    x = torch.linspace(-8, 8, 400)
    expected = ACT2FN[THEIRS[name]](x)
    torch.testing.assert_close(activations.activate(x, name), expected)
    both = torch.stack((x, torch.full_like(x, 3.0)))
    torch.testing.assert_close(activations.gated(both.view(1, -1), name)[0], 3 * expected)


def test_xielu_has_the_alphas_behind_their_softplus():
    theirs = XIELUActivation(0.6, 0.9, beta=0.4, eps=-1e-3, dtype=torch.float32)
    positive = torch.nn.functional.softplus(theirs.alpha_p).item()
    negative = (theirs.beta + torch.nn.functional.softplus(theirs.alpha_n)).item()
    x = torch.linspace(-4, 4, 401)
    mine = activations.activate(x, f"xielu:{positive}:{negative}:0.4:-0.001")
    torch.testing.assert_close(mine, theirs._xielu_python(x).detach())


def test_the_clamped_gate_is_that_of_gpt_oss():
    config = GptOssConfig(hidden_size=8, intermediate_size=40, num_local_experts=1)
    theirs = GptOssExperts(config)
    gate, up = torch.randn(2, 5, 40) * 9
    interleaved = torch.stack((gate, up), -1).flatten(1)
    name = f"clamped_swiglu:{theirs.alpha}:{theirs.limit}"
    mine = activations.gated(torch.cat((gate, up), 1), name)
    torch.testing.assert_close(mine, theirs._apply_gate(interleaved))


def test_the_gate_with_limits_is_that_of_step_35():
    config = Step3p7TextConfig(hidden_size=8, moe_intermediate_size=40, n_routed_experts=1, num_hidden_layers=1)
    theirs = Step3p7Experts(config, swiglu_limit=1.5)
    both = torch.randn(5, 80) * 3
    torch.testing.assert_close(activations.gated(both, "clamped_silu:1.5"), theirs._apply_gate(both))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("swish", "unknown activation 'swish'; known are silu,"),
        ("silu:1", "'silu:1': expected 0 finite numbers"),
        ("clamped_swiglu:1.7", "expected 2 finite numbers"),
        ("clamped_silu", "expected 1 finite numbers"),
        ("clamped_swiglu:1.7:inf", "expected 2 finite numbers"),
        ("xielu:a:b:c:d", "expected 4 finite numbers"),
    ],
)
def test_wrong_names_are_refused(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        activations.parse(name)


def test_a_gated_activation_needs_a_gate():
    with pytest.raises(ValueError, match="the layer has no gate"):
        activations.activate(torch.ones(1, 4), "clamped_swiglu:1:7")

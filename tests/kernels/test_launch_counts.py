"""The launches of a decoding step of a Llama on a GPU, counted without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

MOST_IN_LAYER = 9
MOST_OUTSIDE = 10
"""Outside of layers, with the move of tokens that the device drew itself, with filters and without."""
LAYER = ["normalize", "product", "turn_and_write", "attend", "product", "normalize", "product", "product"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 512,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Its products have few outputs and many inputs, so their segments have programs of their own."""
COUNT = """
import json
import sys
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core_commands.cli.kernels_model import configured
from core_kernels.triton.compiling.ahead import target_of
from core_kernels.triton.compiling.launches import standing_in, written
from core_runtime.executor.dry_run import NOWHERE, Step, phantom_decoders, view_of
from core_runtime.executor.steps.device_tokens import DeviceTokens


class Operations(TorchDispatchMode):
    "What torch itself would launch."

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view and "empty" not in function.name():
            self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def launched(call):
    with written() as calls, Operations() as operations:
        call()
    return operations.names + [call.launch.kernel for call in calls]


def made(*shape, dtype=torch.int64):
    return torch.zeros(shape, dtype=dtype, device=NOWHERE)


def filters(rows):
    return made(rows), made(rows, dtype=torch.float64), made(rows, dtype=torch.float32)


def count(decoder, rows, chosen_filters, config):
    view = view_of(Step(rows, 1), config)
    tokens, drawn, temperatures = made(rows), made(rows), made(rows, dtype=torch.float32)
    race = (decoder.logits_view(rows), made(rows), made(rows, 5), temperatures, drawn, chosen_filters)
    chosen = made(rows)
    buffers = SimpleNamespace(token_ids=SimpleNamespace(tensor=tokens))
    outside = launched(lambda: DeviceTokens(drawn, rows).put(buffers))
    outside += launched(lambda: decoder.embed(tokens, view.positions))
    metadata = []
    outside += launched(lambda: metadata.append(decoder.mixers[0].build(view)))
    metadata *= len(decoder.mixers)  # they are alike, so the forward pass builds it once
    layers = launched(lambda: decoder.run_blocks(view.positions, metadata))
    outside += launched(lambda: decoder.logits(chosen))
    outside += launched(lambda: decoder.kernels.race(*race))
    return outside, layers


config = configured([sys.argv[1], "--load-format", "dummy", "--skip-tokenizer-init"], "sm_90")
with torch.inference_mode(), standing_in(target_of("sm_90")):
    (decoder,) = phantom_decoders(config)
    steps = [(rows, chosen) for rows in (1, 16, 64) for chosen in (None, filters(rows))]
    print(json.dumps([count(decoder, *step, config) for step in steps]))
"""


@pytest.mark.slow
def test_few_launches_in_a_step(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COUNT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    for outside, layers in json.loads(done.stdout):
        assert len(outside) <= MOST_OUTSIDE, outside
        assert len(layers) <= MOST_IN_LAYER * CONFIG["num_hidden_layers"], layers
        # Attention may merge sections of keys, and plan a step, in launches of its own.
        assert [name for name in layers if name in LAYER] == LAYER * CONFIG["num_hidden_layers"]

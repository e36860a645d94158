"""Adapters that are damaged, read for a model that is not.

Owns: good adapters of every format, and the engine that reads them. Never does: damage anything.
Called by: the table of targets.

The executor reads here without the observer, which makes a sentence of whatever a reader raises.
"""

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.api.adapters import AdapterSource

SHAPES = {
    "self_attn.q_proj": (32, 32),
    "self_attn.v_proj": (16, 32),
    "mlp.up_proj": (48, 32),
    "mlp.down_proj": (32, 48),
}
GGUF_NAMES = {"attn_v": "self_attn.v_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
RECURRENT = {"in_proj": (128, 32), "x_proj": (10, 64), "dt_proj": (64, 2)}
RANK = 4
SENT = "sent-adapter"


def _tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1).standard_normal
    found = {}
    for module, (outputs, inputs) in SHAPES.items():
        name = f"base_model.model.model.layers.0.{module}"
        found[f"{name}.lora_A.weight"] = draw((RANK, inputs)).astype(np.float32)
        found[f"{name}.lora_B.weight"] = draw((outputs, RANK)).astype(np.float32)
    found["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"] = draw((2, 32)).astype(np.float32)
    return found


def _configured(folder: Path) -> None:
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 8,
        "rank_pattern": {"q_proj": RANK},
        "alpha_pattern": {"up_proj": 2},
        "use_rslora": True,
        "target_modules": [module.rpartition(".")[2] for module in SHAPES],
        "trainable_token_indices": {"embed_tokens": [3, 7]},
        "alora_invocation_tokens": [5, 6],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def make_safetensors(folder: Path) -> None:
    """peft's files."""
    from safetensors.numpy import save_file

    _configured(folder)
    save_file(_tensors(), folder / "adapter_model.safetensors")


def make_recurrent_base(folder: Path) -> None:
    """A Mamba of one layer."""
    from safetensors.numpy import save_file

    config = {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 4,
        "time_step_rank": 2,
        "conv_kernel": 4,
        "num_hidden_layers": 1,
        "vocab_size": 64,
    }
    (folder / "config.json").write_text(json.dumps(config))
    layer = "backbone.layers.0."
    shapes: dict[str, tuple[int, ...]] = {f"{layer}mixer.{name}.weight": shape for name, shape in RECURRENT.items()}
    shapes |= {
        "backbone.embeddings.weight": (64, 32),
        f"{layer}norm.weight": (32,),
        f"{layer}mixer.conv1d.weight": (64, 1, 4),
        f"{layer}mixer.conv1d.bias": (64,),
        f"{layer}mixer.dt_proj.bias": (64,),
        f"{layer}mixer.A_log": (64, 4),
        f"{layer}mixer.D": (64,),
        f"{layer}mixer.out_proj.weight": (32, 64),
        "backbone.norm_f.weight": (32,),
        "lm_head.weight": (64, 32),
    }
    draw = np.random.default_rng(0).standard_normal
    save_file({name: draw(shape).astype(np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")


def make_recurrent(folder: Path) -> None:
    """An adapter that changes matrices within a recurrence, and replaces its convolution."""
    from safetensors.numpy import save_file

    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": list(RECURRENT)}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "modules_to_save": ["conv1d"]}))
    draw = np.random.default_rng(1).standard_normal
    found = {}
    for module, (outputs, inputs) in RECURRENT.items():
        name = f"base_model.model.backbone.layers.0.mixer.{module}"
        found[f"{name}.lora_A.weight"] = draw((RANK, inputs)).astype(np.float32)
        found[f"{name}.lora_B.weight"] = draw((outputs, RANK)).astype(np.float32)
    for field, shape in (("weight", (64, 1, 4)), ("bias", (64,))):
        found[f"base_model.model.backbone.layers.0.mixer.conv1d.{field}"] = draw(shape).astype(np.float32)
    save_file(found, folder / "adapter_model.safetensors")


def make_pickled(folder: Path) -> None:
    """The same with tensors of `torch.save`."""
    _configured(folder)
    tensors = {name: torch.from_numpy(values) for name, values in _tensors().items()}
    torch.save(tensors, folder / "adapter_model.bin")


def make_gguf(folder: Path) -> None:
    """A file as llama.cpp's converter writes it."""
    import gguf

    writer = gguf.GGUFWriter(folder / "adapter.gguf", "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    draw = np.random.default_rng(1).standard_normal
    for name, module in GGUF_NAMES.items():
        outputs, inputs = SHAPES[module]
        writer.add_tensor(f"blk.0.{name}.weight.lora_a", draw((RANK, inputs)).astype(np.float32))
        writer.add_tensor(f"blk.0.{name}.weight.lora_b", draw((outputs, RANK)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_sent(folder: Path) -> None:
    """An adapter as it lies in the memory of an engine that received it."""
    from core_adapters.sent import SentHeader, SentTensor

    _configured(folder)
    places, end, raw = [], 0, b""
    for name, values in _tensors().items():
        places.append(SentTensor(name, "F32", values.shape, end, values.nbytes))
        raw += values.tobytes() + bytes(-values.nbytes % 64)
        end = len(raw)
    header = SentHeader((folder / "adapter_config.json").read_text(), tuple(places)).encoded()
    (folder / SENT).write_bytes(header + raw)


def sent_reader(make_base: Callable[[Path], None]) -> Callable[[Path], None]:
    """What reads such memory for the model that `make_base` writes."""

    def read(folder: Path) -> None:
        from core_adapters.sent import SentPlace

        with (folder / SENT).open("rb") as file:
            place = SentPlace(0, (folder / SENT).stat().st_size, file.fileno())
            _read(make_base, place.path)

    return read


def _read(make_base: Callable[[Path], None], path: str) -> None:
    from tests.inside import core_of

    executor = core_of(_engine(make_base)).executor
    facts = executor.read_adapter(AdapterSource("damaged", path))
    executor.place_adapter(facts.digest)
    executor.drop_adapter(facts.digest)


def reader(make_base: Callable[[Path], None], file: str = "") -> Callable[[Path], None]:
    """What reads an adapter for the model that `make_base` writes. file: of a folder; empty: all of it."""

    def read(folder: Path) -> None:
        _read(make_base, str(folder / file))

    return read


@functools.cache
def _engine(make_base: Callable[[Path], None]) -> Any:
    """An engine that lives as long as this process."""
    from core import LLM

    folder = Path(tempfile.mkdtemp(prefix="fuzz-base-"))
    make_base(folder)
    return LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        enable_lora=True,
        max_lora_rank=16,
        kv_cache_memory_bytes=1 << 22,
        max_model_len=64,
        max_num_seqs=2,
    )

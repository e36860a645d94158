"""Fingerprint of everything except tokens that the values of a KV block depend on.

Owns: `fingerprint`, and the digest of weight files in it. Never does: read whole weights. Called by: `KVConnectors`, the state
canary, the API server.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from core.api.config import EngineConfig

BESIDE = ("grammar", "kv_connector", "logits_processor", "policy")
"""Kinds of plugins that compute no values: engines with different ones, or other threads, find each other's pages."""
NUM_SAMPLES = 64
SAMPLE_BYTES = 4096
WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".npz")


def fingerprint(config: EngineConfig, numerics: str) -> str:
    """Return 32 hex digits over weights, model configuration, plugins, numerics and the layout of a block.

    An update over the checkpoint counts by its version, the sizes and times of its files, and a digest of tensors from memory.

    Each weight file counts by its size, its modification time and `NUM_SAMPLES` samples; without files the model's name counts.
    """
    cache = config.cache
    model = config.model
    plugins = config.plugins
    arguments = {
        name: own for name, own in plugins.arguments.items() if name.partition(".")[0] not in (*BESIDE, "platform")
    }
    settled = {
        "numerics": numerics,
        "model": [model.dtype, model.hf_config],
        "plugins": [plugins.loader, plugins.quantization, plugins.kernels, plugins.attention, arguments],
        "sources": [[row.kind, row.name, row.version, row.sha256] for row in plugins.table if row.kind not in BESIDE],
        "cache": [cache.dtype, cache.block_size, cache.hash_algorithm, cache.groups],
        "stored": [*cache.layer_dtypes, cache.state_dtype],
    }
    if config.draft is not None:  # its type is known to the executor only, so it is read as plain values here
        draft = msgspec.to_builtins(config.draft)
        settled["draft"] = [draft["model"]["model"], draft["spec"]]
    if config.weights.number:
        settled["weights"] = [config.weights.version, config.weights.sources]
    # Deterministic, because the order of a configuration's keys says nothing about values.
    digest = hashlib.sha256(msgspec.msgpack.encode(settled, order="deterministic"))
    files = weight_files(Path(model.model))
    if not files:
        digest.update(model.model.encode())
    for path in files:
        _add_file(digest, path)
    return digest.hexdigest()[:32]


def weights_digest(model: str) -> str:
    """Return hex digits over sizes and samples of the weight files at a path, if any, whatever their names and times."""
    digest = hashlib.sha256()
    for path in weight_files(Path(model)):
        size = path.stat().st_size
        digest.update(f"{path.suffix}:{size}".encode())
        _add_samples(digest, path, size)
    return digest.hexdigest()[:32]


def files_digest(model: str) -> str:
    """Return hex digits over names, sizes, modification times and samples of the weight files at a path, if any."""
    digest = hashlib.sha256()
    for path in weight_files(Path(model)):
        _add_file(digest, path)
    return digest.hexdigest()[:32]


def weight_files(path: Path) -> list[Path]:
    """Return the weight files at a path, in the order of their names."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    return sorted(file for file in path.iterdir() if file.suffix in WEIGHT_SUFFIXES)


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    status = path.stat()
    digest.update(f"{path.name}:{status.st_size}:{status.st_mtime_ns}".encode())
    _add_samples(digest, path, status.st_size)


def _add_samples(digest: hashlib._Hash, path: Path, size: int) -> None:
    with path.open("rb") as file:
        # 64 samples of 4 KiB from all parts of the file: reading whole weights would take as long as loading them.
        for index in range(NUM_SAMPLES):
            start = size * index // NUM_SAMPLES
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))

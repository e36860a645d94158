"""Shards of safetensors: headers first, then only the byte ranges that are asked for, neighbours in one request."""

import json
import math
from pathlib import Path

from core.api.errors import CheckpointError
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo, TokenizerSource

SCHEME = "toystore://"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
GAP = 4096
"""Ranges that lie as near as this are read together."""


class ToystoreLoader:
    """The loader contract."""

    def __init__(self, store, cache):
        self.store, self.cache = store, Path(cache)

    def resolve(self, ref):
        """Configuration, tokenizer and the headers of all shards."""
        if not ref.startswith(SCHEME):
            raise CheckpointError(f"{ref}: expected a reference such as {SCHEME}bucket/model.")
        key = ref.removeprefix(SCHEME).rstrip("/")
        config, index = self._json(f"{key}/config.json"), self._json(f"{key}/model.safetensors.index.json")
        files = [f"{key}/{name}" for name in sorted(set(index.get("weight_map", {}).values()))]
        tensors = {}
        for number, file in enumerate(files):
            tensors |= self._header(file, number)
        folder = self.cache / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_bytes(self.store.get(f"{key}/tokenizer.json"))
        return CheckpointManifest(ref, "toystore", files, tensors, config, TokenizerSource(directory=str(folder)))

    def iter(self, manifest, reads):
        """Tensors in the order in which they lie in the shards."""
        import torch

        unknown = [name for name in reads if name not in manifest.tensors]
        if unknown:
            raise CheckpointError(f"{manifest.ref}: there is no tensor '{unknown[0]}'.")
        infos = sorted((manifest.tensors[name] for name in set(reads)), key=lambda info: (info.file, info.offset))
        for run in _runs(infos):
            start = run[0].offset
            data = bytearray(self.store.get(manifest.files[run[0].file], start, run[-1].offset + run[-1].nbytes))
            for info in run:
                dtype = getattr(torch, DTYPES[info.dtype])
                whole = torch.frombuffer(data, dtype=torch.uint8)[info.offset - start :][: info.nbytes]
                yield info.name, whole.clone().view(dtype).view(info.shape)

    def _json(self, key):
        try:
            found = json.loads(self.store.get(key))
        except ValueError as error:
            raise CheckpointError(f"{SCHEME}{key}: is not JSON: {error}.") from error
        if not isinstance(found, dict):
            raise CheckpointError(f"{SCHEME}{key}: expected a JSON object.")
        return found

    def _header(self, key, number):
        size = int.from_bytes(self.store.get(key, 0, 8), "little")
        if size > 100_000_000:
            raise CheckpointError(f"{SCHEME}{key}: is no safetensors file.")
        try:
            entries = json.loads(self.store.get(key, 8, 8 + size))
            return {
                name: self._info(name, entry, number, 8 + size)
                for name, entry in entries.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{SCHEME}{key}: has a damaged header: {error!r}.") from error

    def _info(self, name, entry, number, base):
        begin, end = entry["data_offsets"]
        shape, dtype = tuple(entry["shape"]), entry["dtype"]
        if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
            raise ValueError(f"{name} has {end - begin} bytes")
        return TensorInfo(name, shape, dtype, end - begin, number, base + begin, name)


def _runs(infos):
    """Tensors that are read with one request."""
    run = []
    for info in infos:
        if run and (info.file != run[-1].file or info.offset - run[-1].offset - run[-1].nbytes > GAP):
            yield run
            run = []
        run.append(info)
    if run:
        yield run

"""Reads frozen.npz member by member."""

import json
from pathlib import Path

import numpy as np

from core.api.checkpoint import CheckpointManifest, TensorInfo, TokenizerSource
from core.api.errors import CheckpointError

DTYPES = {"float32": "F32", "float16": "F16"}


class NpzLoader:
    """The loader's contract."""

    def resolve(self, ref):
        """Read the configuration and the headers of all members."""
        directory = Path(ref)
        archive = directory / "frozen.npz"
        try:
            config = json.loads((directory / "config.json").read_text())
            with np.load(archive) as members:
                tensors = {name: self._info(name, members[name]) for name in members.files}
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{directory}: not a numpy checkpoint: {error}") from error
        tokenizer = TokenizerSource(directory=str(directory))
        generation = {"eos_token_id": config.get("eos_token_id")}
        return CheckpointManifest(ref, "npz", [str(archive)], tensors, config, tokenizer, generation)

    def iter(self, manifest, reads):
        """Tensors in the order asked for."""
        import torch

        with np.load(manifest.files[0]) as members:
            for name in reads:
                yield name, torch.from_numpy(members[name])

    def _info(self, name, array):
        return TensorInfo(name, array.shape, DTYPES[str(array.dtype)], array.nbytes, 0, 0, name)

"""The Triton attention backend in the interpreter."""

from typing import Any

import msgspec

from core_attention.triton import manifest
from core_attention.triton.backend import TritonAttention


class Interpreted:
    """The backend as if it were one for the processor, on which the interpreter runs."""

    device = "cpu"

    def __init__(self) -> None:
        own = manifest.core_spec()
        self.spec = msgspec.structs.replace(own, capabilities={**own.capabilities, "devices": ["cpu"]})
        self.loaded = TritonAttention()
        self.manifest = self

    def call(self, hook: str, query: Any) -> Any:
        return getattr(manifest, hook)(query)

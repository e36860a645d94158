"""The Triton attention backend in the interpreter, or on the device of the option `--on-device`."""

from typing import Any

import msgspec

from core_attention.triton import manifest
from core_attention.triton.backend import TritonAttention
from tests.on_device import device_name


class Interpreted:
    """The backend as if it were one for the processor, on which the interpreter runs."""

    def __init__(self) -> None:
        self.device = device_name()
        own = manifest.core_spec()
        self.spec = msgspec.structs.replace(own, capabilities={**own.capabilities, "devices": [self.device]})
        self.loaded = TritonAttention()
        self.manifest = self

    def call(self, hook: str, query: Any) -> Any:
        return getattr(manifest, hook)(query)

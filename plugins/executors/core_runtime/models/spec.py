"""Where the shape of a decoder was published first; plugins of contract 1 import it from here.

Owns: nothing. New code imports `core_runtime.specs.decoder_spec`.
"""

from core_runtime.specs.decoder_spec import BlockSpec, DecoderSpec, ExpertsSpec

__all__ = ["BlockSpec", "DecoderSpec", "ExpertsSpec"]

"""Former module of the decoder's shape, from which plugins of contract 1 import it.

Owns: nothing. New code imports `core_runtime.specs.decoder_spec`.
"""

from core_runtime.specs.decoder_spec import BlockSpec, DecoderSpec, ExpertsSpec

__all__ = ["BlockSpec", "DecoderSpec", "ExpertsSpec"]

"""From int32 words of eight nibbles to the canonical `int4_groups`."""

import torch

from core.api.errors import CheckpointError
from core.api.specs import DensePlan, PartPlan, Unsupported
from core_runtime.weights.formats import IntGroups

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight weights lies in which nibble of a word, the lowest first."""
ZERO = 8


class Nibble4:
    """The quantization contract for one checkpoint: `X.qweight` int32 [N, K / 8], `X.scales` float16 [N, K / group]."""

    def __init__(self, manifest):
        self.tensors = {} if manifest is None else manifest.tensors

    def plan(self, spec):
        """Packed where there is a qweight, plain where there is a weight."""
        plain, packed, scales = (f"{spec.name}.{part}" for part in ("weight", "qweight", "scales"))
        if plain in self.tensors:
            return DensePlan((plain,))
        if packed not in self.tensors or scales not in self.tensors:
            return Unsupported(f"the checkpoint has neither '{plain}' nor '{packed}' with '{scales}'")
        n, k = spec.shape
        if tuple(self.tensors[packed].shape) != (n, k // 8):
            return Unsupported(f"'{packed}' has shape {self.tensors[packed].shape}, expected {(n, k // 8)}")
        groups = self.tensors[scales].shape[1]
        return PartPlan((packed, scales), "int4_groups", "none", f"nibble4/{k // groups}", n * k // 2 + n * groups * 2)

    def pack(self, spec, tensors):
        """Unpack the words, put the nibbles in order, pack pairs."""
        words, scales = tensors[f"{spec.name}.qweight"], tensors[f"{spec.name}.scales"]
        if words.dtype is not torch.int32:
            raise CheckpointError(
                f"'{spec.name}.qweight' is {words.dtype}, expected int32; convert the checkpoint again."
            )
        nibbles = torch.stack([(words >> (4 * ORDER.index(i))) & 15 for i in range(8)], -1).to(torch.uint8).flatten(1)
        values = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
        return IntGroups(4, spec.shape[1] // scales.shape[1], values, scales.clone(), None, ZERO)


def save(weight, group_size):
    """The other direction, for converters: float32 [N, K] to (qweight, scales)."""
    n, k = weight.shape
    groups = weight.view(n, k // group_size, group_size)
    scales = (groups.abs().amax(-1) / 7).clamp_min(6e-8).half()
    values = (torch.round(groups / scales.float().unsqueeze(-1)).clamp(-8, 7) + ZERO).to(torch.int32).view(n, k // 8, 8)
    words = torch.zeros(n, k // 8, dtype=torch.int32)
    for nibble, index in enumerate(ORDER):
        words |= values[..., index] << (4 * nibble)
    return words, scales

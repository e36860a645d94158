"""The memory plan: weights, KV cache, workspace and capacity, computed from shapes alone.

Owns: bytes of prepared weights, of a KV block, of a step's buffers. Never does: read a weight, allocate.
Called by: resolve, explain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from core.api.errors import UserError
from core.api.specs import (
    KV_TYPES,
    STATE_DTYPE,
    AttentionSpec,
    DensePlan,
    KVGroup,
    LatentSpec,
    LayerSpec,
    MixerSpec,
    PartPlan,
    StateSpec,
    Unsupported,
)
from core.api.step_limits import StepLimits
from core.kv.groups import blocks_of_sequence, longest_sequence
from core_runtime.specs.chosen_keys import gathered_bytes
from core_runtime.specs.kv_groups import stored_bytes
from core_runtime.specs.module_spec import ModelSpec
from core_runtime.specs.stage_groups import groups_of_stages, stages_page_bytes
from core_runtime.specs.stages import Range
from core_runtime.specs.weight_offload import OffloadConfig

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
NO_LIMITS = StepLimits()

Plan = Callable[[LayerSpec], DensePlan | PartPlan | Unsupported]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory plan of an engine: bytes, and the capacity of the KV cache.

    weights: bytes of all matrices as the kernels store them, those in host memory included.
    block: bytes of one KV block in the layers of a group.
    num_blocks: blocks of the pool, one of which is reserved as padding.
    block_size: tokens of a block.
    workspace: bytes of a step's buffers (pages that no step touches are never allocated).
    max_model_len: tokens of the longest request.
    groups: groups of layers that share a block table.
    layer_dtypes: storage type of each layer's keys and values; empty: all have that of the cache.
    readers: layers that read the keys and values of another one, and store none.
    max_step_tokens: limit of tokens of one sequence in a step.
    proposer: bytes of the additional weights for drafts.
    limits: limits of a step of the model.
    draft_limits: limits of a step of its draft; zeros without one.
    adapter: bytes of the largest adapter.
    num_adapters: limit of adapters in memory.
    tower: bytes of the tower of pictures, or encoder of sounds, in the host's memory.
    tower_rows: limit of bytes of its rows that are kept for later prompts.
    offloaded: bytes of weights in host memory.
    slots: bytes of the slots on the device that these are copied to.
    offload: which weights these are; None: all are on the device.
    """

    weights: int
    block: int
    num_blocks: int
    block_size: int
    workspace: int = 0
    max_model_len: int = 0
    groups: tuple[KVGroup, ...] = (KVGroup("full", (0,)),)
    layer_dtypes: tuple[str, ...] = ()
    readers: int = 0
    max_step_tokens: int = 0
    proposer: int = 0
    limits: StepLimits = NO_LIMITS
    draft_limits: StepLimits = NO_LIMITS
    adapter: int = 0
    num_adapters: int = 0
    tower: int = 0
    tower_rows: int = 0
    offloaded: int = 0
    slots: int = 0
    offload: OffloadConfig | None = None

    @property
    def kv(self) -> int:
        """Return the bytes of the KV cache."""
        return self.block * self.num_blocks

    @property
    def adapters(self) -> int:
        """Return the bytes of adapters when as many as may be are in memory, each of the largest size."""
        return self.adapter * self.num_adapters

    @property
    def kv_per_token(self) -> float:
        """Return the bytes of a token's keys and values in all layers, as long as it is inside every window."""
        keyed_groups = sum(group.kind != "state" for group in self.groups)
        return self.block * keyed_groups / self.block_size

    @property
    def state(self) -> int:
        """Return the bytes of the blocks that hold a sequence's states, and their copies; 0 without layers that have
        one.
        """
        state_blocks = sum(group.num_state_blocks + group.num_spare_blocks for group in self.groups)
        return self.block * state_blocks

    @property
    def kept_layers(self) -> dict[str, int]:
        """Return the number of layers with keys and values by storage type, where the types differ."""
        keyed = {layer for group in self.groups if group.kind != "state" for layer in group.layers}
        return dict(Counter(dtype for layer, dtype in enumerate(self.layer_dtypes) if layer in keyed))

    @property
    def tokens(self) -> int:
        """Return the maximum number of tokens of one sequence."""
        return longest_sequence(self.groups, self.block_size, self.max_step_tokens, self._capacity)

    @property
    def max_concurrency(self) -> float:
        """Return how many requests of the maximum length fit at the same time."""
        if not self.max_model_len:
            return 0.0
        return self._capacity / self.blocks_of(self.max_model_len)

    def blocks_of(self, num_tokens: int) -> int:
        """Return the blocks of a sequence of that length."""
        return blocks_of_sequence(self.groups, self.block_size, self.max_step_tokens, num_tokens)

    @property
    def _capacity(self) -> int:
        """Return the blocks that sequences may use: all but the padding block."""
        return max(self.num_blocks - 1, 0)


def block_bytes(specs: Sequence[AttentionSpec | LatentSpec], block_size: int, dtype: str) -> int:
    """Return the bytes of one KV block over all layers."""
    kv_type = KV_TYPES[dtype]
    token_bytes = sum(kv_type.token_bytes(spec) for spec in specs)
    return block_size * token_bytes


def kv_groups(
    mixers: Sequence[MixerSpec],
    block_size: int,
    dtypes: Sequence[str],
    *,
    hybrid: bool,
    strided: bool = False,
    drafts: bool = False,
    state_dtype: str = STATE_DTYPE,
    stages: Sequence[Range] = (),
    lenders: Mapping[int, int] = MappingProxyType({}),
) -> tuple[tuple[KVGroup, ...], int]:
    """Return the groups of all layers, and the bytes of one block of the pool.

    mixers: mixers of the model, then of its draft, in the worker's numbering.
    dtypes: storage type of each mixer's keys and values.
    hybrid, strided, drafts: see `group_layers`.
    state_dtype: storage type of states.
    stages: mixers of each stage; empty: there is one.
    lenders: see `DecoderShape.lenders`; these mixers store nothing.
    """
    windows: list[int | None] = []
    layer_bytes: list[int] = []
    states: set[int] = set()
    for index, mixer in enumerate(mixers):
        if isinstance(mixer, StateSpec):
            states.add(index)
            windows.append(None)
            layer_bytes.append(mixer.bytes_in(state_dtype))
        else:
            windows.append(mixer.window)
            layer_bytes.append(block_bytes([mixer], block_size, dtypes[index]))
    layer_bytes = stored_bytes(layer_bytes, lenders)
    held = stages or [(0, len(mixers))]
    groups = groups_of_stages(windows, layer_bytes, held, hybrid=hybrid, strided=strided, states=states, drafts=drafts)
    return groups, stages_page_bytes(groups, layer_bytes, held)


def weights_bytes(spec: ModelSpec, plan: Plan | None, dtype: str, multiple: Callable[[str], int]) -> int:
    """Return the bytes of all matrices; a tied one counts once.

    plan: plan of the quantization method, None without one.
    dtype: dtype of plain matrices.
    multiple: outputs that the kernels for a format pack side by side.
    Raises UserError when the method does not support a part.
    """
    total = spec.num_plain * ITEM_BYTES[dtype]
    for parts in spec.fused_groups():
        total += group_bytes(parts, plan, dtype, multiple)
    for half in spec.halves():
        num_matrices = half.shape[0]
        total += num_matrices * group_bytes([half], None, dtype, multiple)
    return total


def group_bytes(parts: Sequence[LayerSpec], plan: Plan | None, dtype: str, multiple: Callable[[str], int]) -> int:
    """Return the bytes of one layer: neighbours of one format are concatenated along N and padded together."""
    total = 0
    rows = 0
    key = ""
    row_bytes = 0.0
    form = dtype

    def padded() -> int:
        side = multiple(form)
        padded_rows = -(-rows // side) * side
        return round(padded_rows * row_bytes)

    for part in parts:
        n, k = part.shape[-2:]
        answer = DensePlan((part.name,)) if plan is None else plan(part)
        if isinstance(answer, Unsupported):
            raise UserError(f"The quantization method cannot serve {part.name}: {answer.reason}.")
        own_key = "dense" if isinstance(answer, DensePlan) else answer.fuse_key
        if own_key != key:
            total += padded()
            rows = 0
            key = own_key
        if isinstance(answer, DensePlan):
            row_bytes = k * ITEM_BYTES[dtype]
            form = dtype
        else:
            row_bytes = answer.nbytes / n
            form = answer.format
        rows += n
    return total + padded()


def workspace_bytes(spec: ModelSpec, limits: StepLimits, dtype: str, *, ranks: int = 1, told: bool = False) -> int:
    """Return the bytes of a step's buffers.

    dtype: dtype of tensors between layers.
    ranks: how many share each layer; each of several has the places of the chosen experts.
    told: whether answers have the chosen experts, which each layer then keeps.
    """
    item = ITEM_BYTES[dtype]
    _, choices = spec.router_widths()
    widths = sum(spec.buffers().values())
    # ids, places of experts and numbers of rows are int64, weights float32, positions of chosen keys int32
    token_bytes = item * widths + (8 + 4) * choices + 4 * spec.chosen_keys() + 8 * spec.copies_rows()
    if ranks > 1:
        token_bytes += ranks * 8 * choices
    if told:
        token_bytes += 8 * spec.told_choices()
    logit_bytes = item * spec.hidden_size + 4 * spec.vocab_size
    return limits.tokens * token_bytes + limits.logit_rows * logit_bytes


def chosen_keys_bytes(mixers: Sequence[MixerSpec], dtypes: Sequence[str], rows: int, limit: int) -> int:
    """Return the bytes in which a backend gathers chosen keys: of the layer that needs most. limit: the backend's own."""
    most = 0
    for mixer, dtype in zip(mixers, dtypes, strict=True):
        if isinstance(mixer, LatentSpec):
            # Keys with scales of groups are expanded to 16 bits where they are gathered.
            item_bytes = 2 if KV_TYPES[dtype].group else KV_TYPES[dtype].item_bytes
            most = max(most, gathered_bytes(mixer, item_bytes, rows, limit))
    return most


def human_bytes(count: float) -> str:
    """Return a size in the form `123.4 MiB`, with units from B to GiB."""
    size = count
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"

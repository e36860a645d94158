"""Given embeddings for the rows of a step: of prompts that are embeddings, and of media in prompts.

Owns: `InputEmbeddings`, and which rows of a step have given embeddings. Never does: write them into a model (its embedding
does). Called by: the persistent batch (keeps the embeddings of its sequences here), the model runner (requests those of a
step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.messages import EngineRequest, MediaItem
from core.api.step_plan import Slot
from core_runtime.executor.steps.rotary_rows import places_of


@dataclass(frozen=True, slots=True)
class InputEmbeddings:
    """Given embeddings of a step, on the host.

    rows: int64 [R], rows of the step. values: float32 [R, H].
    media: int64 [M], those of them with places, with something to add, or both.
    places: int64 [M, 3], positions of rows with three positions; None: all have one.
    added: float32 [M, levels, H], see `Decoder.set_added`; None: nothing.
    """

    rows: Tensor
    values: Tensor
    media: Tensor
    places: Tensor | None = None
    added: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Given embeddings of a prompt.

    positions: int64 [P], ascending. values: float32 [P, H].
    places: int64 [P, 3] or None, added: float32 [P, levels, H] or None, see `InputEmbeddings`.
    """

    positions: NDArray[np.int64]
    values: Tensor
    places: Tensor | None = None
    added: Tensor | None = None


def gives_rows(request: EngineRequest) -> bool:
    """Whether some embeddings of the request's prompt are given."""
    return bool(request.prompt_embeds or request.media)


def rows_of(request: EngineRequest) -> PromptRows:
    """Return a copy of the given embeddings of a request. Raises ValueError for media whose rows do not fit their tokens."""
    count = len(request.prompt_token_ids)
    if request.prompt_embeds:
        values = np.frombuffer(request.prompt_embeds, np.float32).copy()
        return PromptRows(np.arange(count), torch.from_numpy(values).view(count, -1))
    token_ids = np.asarray(request.prompt_token_ids)
    positions = [positions_of(item, token_ids) for item in request.media]
    rows = [
        np.frombuffer(item.rows, np.float32).reshape(len(found), -1)
        for item, found in zip(request.media, positions, strict=True)
    ]
    values = torch.from_numpy(np.concatenate(rows))
    levels = request.media[0].levels
    values = values.view(len(values), 1 + levels, -1)
    places = torch.from_numpy(places_of(request.media)) if any(item.grid for item in request.media) else None
    return PromptRows(np.concatenate(positions), values[:, 0], places, values[:, 1:] if levels else None)


def encoded_of(request: EngineRequest, shape: tuple[int, int]) -> Tensor:
    """Return a copy of an encoder's rows of a request's sound, float32 `shape`; zeros where it has none, as the engine's own.

    Raises ValueError for rows of another number or size.
    """
    if not request.media:
        return torch.zeros(shape)
    return torch.from_numpy(np.frombuffer(request.media[0].rows, np.float32).copy()).view(shape)


def positions_of(item: MediaItem, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of an item's rows in a prompt."""
    return np.flatnonzero(token_ids[item.start : item.stop] == item.token_id) + item.start


def input_embeddings(
    embedded: Mapping[Slot, PromptRows], slots: Sequence[int], starts: Sequence[int], num_computed: Sequence[int]
) -> InputEmbeddings | None:
    """Return the given embeddings of a step; None if it computes no position that has one.

    embedded: rows by slot, for sequences that have them.
    slots: slots of the step's sequences. starts: first row of each sequence in the step, and the end of the last one.
    num_computed: position of each sequence's first token in the step.
    """
    rows: list[Tensor] = []
    values: list[Tensor] = []
    media: list[Tensor] = []
    places: list[Tensor] = []
    added: list[Tensor] = []
    for index, slot in enumerate(slots):
        given = embedded.get(slot)
        if given is None:
            continue
        position = num_computed[index]
        end = position + starts[index + 1] - starts[index]
        first, last = np.searchsorted(given.positions, (position, end)).tolist()
        if last > first:
            rows.append(torch.from_numpy(given.positions[first:last] + (starts[index] - position)))
            values.append(given.values[first:last])
            if given.places is not None or given.added is not None:
                media.append(rows[-1])
            if given.places is not None:
                places.append(given.places[first:last])
            if given.added is not None:
                added.append(given.added[first:last])
    if not rows:
        return None
    none = torch.empty(0, dtype=torch.int64)
    return InputEmbeddings(
        torch.cat(rows),
        torch.cat(values),
        torch.cat(media) if media else none,
        torch.cat(places) if places else None,
        torch.cat(added) if added else None,
    )

"""What both stand-ins compute: one sequence after the other, in float64."""

import torch


def attend(q, keys, values, *, scale, left, softcap=0.0, slopes=None, sinks=None):
    """[rows, Hq, D] of the last rows of a sequence, whose keys are all given, [length, Hkv, D]. left: -1, or keys before."""
    group = q.shape[1] // keys.shape[1]
    keys = keys.double().repeat_interleave(group, 1)
    values = values.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * scale
    if softcap > 0:
        scores = torch.tanh(scores / softcap) * softcap
    key = torch.arange(len(keys))
    query = torch.arange(len(keys) - len(q), len(keys)).unsqueeze(1)
    if slopes is not None:
        scores = scores - slopes.double().view(-1, 1, 1) * (query - key).abs()
    mask = key <= query
    if left >= 0:
        mask &= key >= query - left
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(-1, 1, 1).expand(-1, len(q), 1)], -1)
    weights = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


def gathered(cache, blocks, length):
    """[length, Hkv, D] of a sequence's blocks."""
    return cache[blocks.long()].flatten(0, 1)[:length]

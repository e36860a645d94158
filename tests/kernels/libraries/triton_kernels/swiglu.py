import torch


def swiglu_fn(columns, alpha, limit):
    """Even columns are gates, odd ones what they open."""
    gate = columns[..., ::2].clamp(max=limit)
    return gate * torch.sigmoid(alpha * gate) * (columns[..., 1::2].clamp(-limit, limit) + 1)

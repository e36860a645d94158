"""Tests that need a GPU: `make gpu-test`."""

import pytest


@pytest.fixture(scope="session")
def device():
    """The first GPU."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    return torch.device("cuda", 0)

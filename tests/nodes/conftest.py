"""The network of machines (network namespaces) that the tests of a module share."""

import os
from collections.abc import Iterator

import pytest

from tests.nodes.network import Network


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    assert os.geteuid() == 0, "network namespaces need root"
    network = Network()
    yield network
    network.close()

"""A server never takes more connections than it can have files."""

from __future__ import annotations

import resource

import pytest

from core.api.errors import UserError
from core.serving.file_limit import RESERVED_FILES, connection_limit


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limit", "raised"),
    [
        (1024, 1 << 20, 2048, 2048, 2048 + RESERVED_FILES),
        (1024, 1500, 2048, 1500 - RESERVED_FILES, 1500),
        (128, 128, 2048, 128 - RESERVED_FILES, 128),
        (4096, 4096, 2048, 2048, 4096),
        (1024, resource.RLIM_INFINITY, 2048, 2048, 2048 + RESERVED_FILES),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 2048, 2048, resource.RLIM_INFINITY),
        (1 << 20, 1 << 20, 1, 1, 1 << 20),
    ],
)
def test_connections_fit_into_the_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, limit: int, raised: int
) -> None:
    now = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: now.__setitem__(slice(None), pair))
    assert connection_limit(wanted) == limit
    assert now == [raised, hard]


def test_too_few_files_are_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (24, 24))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: None)
    with pytest.raises(UserError, match=r"24 files.*ulimit -n"):
        connection_limit(2048)

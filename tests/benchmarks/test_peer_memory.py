"""How much of a server's memory counts as KV cache."""

import pytest

from benchmarks.peer.contenders import SERVER_KV_BYTES
from benchmarks.peer.environment import PeerError
from benchmarks.peer.memory import kv_megabytes

SLOTS = "load_model: initializing, n_slots = 16, n_ctx_slot = 2048, kv_unified = 'false'\n"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "server.log"


def test_ours_counts_what_was_written_up_to_its_whole_cache(log):
    assert kv_megabytes("core", log, 5_000_000, 100) == 5
    assert kv_megabytes("core", log, 10 * SERVER_KV_BYTES, 100) == SERVER_KV_BYTES / 1e6


def test_slots_of_llama_cpp_are_read_from_its_log(log):
    log.write_text(f"server: starting\n{SLOTS}server: listening\n")
    assert kv_megabytes("llama.cpp", log, 0, 1000) == pytest.approx(16 * 2048 * 1000 / 1e6)


def test_a_log_without_slots_is_not_taken_for_a_server_without_a_cache(log):
    log.write_text("server: listening\n")
    with pytest.raises(PeerError, match="slots"):
        kv_megabytes("llama.cpp", log, 0, 1000)

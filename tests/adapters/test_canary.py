"""The state canary probes the adapters of the start, each by its digest."""

import json
from pathlib import Path

import pytest

from core_config.resolve import resolve
from core_observers.engine.canary import NEW_TOKENS, StateError
from core_supervision.link.inproc import InprocClient
from tests.adapters.drawn import shapes_of, write_adapter


def start(model: Path, records: Path, *adapters: Path) -> None:
    """Start an engine and end it."""
    given = {
        "model": str(model), "max_model_len": 128, "max_num_seqs": 2, "kv_cache_memory_bytes": 1 << 21, "enable_lora": True,
        "max_loras": 2, "lora_modules": [f"{path.name}={path}" for path in adapters], "state_canary": str(records),
    }  # fmt: skip
    InprocClient(resolve(given, context="serve").engine).core.close()


def test_each_adapter_must_compute_what_it_computed_first(tiny_llama: Path, tmp_path: Path) -> None:
    records = tmp_path / "records"
    shapes = shapes_of(str(tiny_llama))
    sql, fr, other = (
        write_adapter(tmp_path / name, shapes, 8, seed, 0.2) for seed, name in enumerate(("sql", "fr", "other"))
    )
    for _ in range(2):
        start(tiny_llama, records, sql, fr)
        assert len(list(records.glob("*.json"))) == 3, "the model's record, and one for each adapter"
    found = {path: json.loads(path.read_text()) for path in records.glob("*-*.json")}
    assert all(len(record["tokens"]) == NEW_TOKENS for record in found.values())
    first, second = found.values()
    assert first["logprobs"] != second["logprobs"], "each has an effect"

    for path in other.iterdir():  # other weights under the same name and path are another adapter
        (fr / path.name).write_bytes(path.read_bytes())
    start(tiny_llama, records, sql, fr)
    assert len(list(records.glob("*-*.json"))) == 3

    for path, record in found.items():
        path.write_text(json.dumps(record | {"logprobs": ["0x1p+0", *record["logprobs"][1:]]}))
    with pytest.raises(StateError, match=r"with adapter 'sql' the probe's log-probabilities differ.*remove that file"):
        start(tiny_llama, records, sql)
    start(tiny_llama, records)

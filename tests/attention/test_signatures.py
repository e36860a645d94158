"""Stand-ins take no argument that the installed library lacks. It is read, not imported: most need a device."""

import ast
import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

PUBLISHED = [
    ("flashinfer", "flashinfer", "prefill.py", "BatchPrefillWithPagedKVCacheWrapper.__init__"),
    ("flashinfer", "flashinfer", "prefill.py", "BatchPrefillWithPagedKVCacheWrapper.plan"),
    ("flashinfer", "flashinfer", "decode.py", "BatchDecodeWithPagedKVCacheWrapper.__init__"),
    ("flashinfer", "flashinfer", "mla/_batch_mla/_wrapper.py", "BatchMLAPagedAttentionWrapper.__init__"),
    ("flashinfer", "flashinfer", "mla/_batch_mla/_wrapper.py", "BatchMLAPagedAttentionWrapper.plan"),
    ("flashinfer", "flashinfer", "mla/_batch_mla/_contracts.py", "MLAPlanMetadata.csr"),
    ("flash_attn_4", "flash_attn", "cute/interface.py", "flash_attn_varlen_func"),
    ("flash_mla", "flash_mla", "flash_mla_interface.py", "flash_mla_with_kvcache"),
    ("fla_gated_delta_rule", "fla", "ops/gated_delta_rule/chunk.py", "chunk_gated_delta_rule"),
]


def names_in(file: Path, what: str) -> set[str]:
    """The arguments of a function or method, of all its overloads."""
    owner, _, name = what.rpartition(".")
    body = ast.parse(file.read_text()).body
    if owner:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    found = [node.args for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert found, f"{file} has no {what}"
    return {argument.arg for one in found for argument in (*one.posonlyargs, *one.args, *one.kwonlyargs)}


@pytest.mark.parametrize("stand_in, package, file, what", PUBLISHED, ids=[row[3] for row in PUBLISHED])
def test_arguments_are_the_librarys(stand_in: str, package: str, file: str, what: str) -> None:
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else [Path(folder) / file for folder in spec.submodule_search_locations or ()]
    source = next((path for path in folders if path.is_file()), None)
    if source is None:
        pytest.skip(f"{package} is not installed")
    used = importlib.import_module(f"tests.attention.libraries.{stand_in}")
    for part in what.split("."):
        used = getattr(used, part)
    named = {name for name, one in inspect.signature(used).parameters.items() if one.kind is not one.VAR_KEYWORD}
    assert named - {"self", "cls"} <= names_in(source, what)

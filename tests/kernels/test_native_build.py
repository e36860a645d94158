"""Compiling the extension: without a compiler, with a failing or an old one, and where nothing may be written."""

import os
import platform
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from core.api.errors import UserError
from core_plugins.platforms.cpu import build

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("core_plugins/platforms/cpu")
OLD_COMPILER = """#!/bin/sh
# Knows no BF16, writes empty outputs, and remembers how it was called.
echo "$@" >> {log}
case "$*" in *bf16.cpp*) echo "error: unrecognized option" >&2; exit 1;; esac
while [ "$1" != "-o" ]; do shift; done
touch "$2"
"""


@pytest.fixture
def source(tmp_path):
    shutil.copytree(ROOT / PACKAGE / "native", tmp_path / PACKAGE / "native")
    shutil.copy(ROOT / "setup.py", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("core", "core_plugins"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "README.md").write_text("")
    return tmp_path


def compile_with(source, compiler, *options):
    tools = {name: str(compiler) for name in ("CC", "CXX", "LDSHARED", "LDCXXSHARED")}
    command = [sys.executable, "setup.py", "build_ext", "--inplace", *options]
    environment = {**os.environ, **tools}
    done = subprocess.run(
        command, cwd=source, capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr  # an installation goes on without the extension
    return source / PACKAGE / "native_build_error.txt", list((source / PACKAGE).glob("_native*.so"))


def test_without_a_compiler_the_installation_goes_on_and_the_reason_is_kept(source):
    error, built = compile_with(source, source / "no-such-compiler")
    assert not built and "no-such-compiler" in error.read_text()


def test_what_the_compiler_says_is_kept_until_a_build_succeeds(source):
    compiler = source / "compiler"
    compiler.write_text("#!/bin/sh\necho 'fatal error: it rains' >&2; exit 1\n")
    compiler.chmod(0o755)
    error, built = compile_with(source, compiler, "--force")
    assert not built and "it rains" in error.read_text()
    compiler.write_text(OLD_COMPILER.format(log=source / "log"))
    error, built = compile_with(source, compiler)
    assert built and not error.exists()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="needs instruction sets to leave out")
def test_an_old_compiler_leaves_out_what_it_does_not_know(source):
    compiler = source / "compiler"
    compiler.write_text(OLD_COMPILER.format(log=source / "log"))
    compiler.chmod(stat.S_IRWXU)
    error, built = compile_with(source, compiler)
    assert built and not error.exists()
    calls = (source / "log").read_text().splitlines()
    dispatch = next(call for call in calls if "dispatch.cpp" in call)
    left_out, kept = {"x86_64": ("AVX512_VNNI_BF16", "AVX512_VNNI"), "aarch64": ("NEON_BF16", "NEON_DOT")}[
        platform.machine()
    ]
    assert f"-DCORE_HAVE_{kept} " in dispatch and f"-DCORE_HAVE_{left_out}" not in dispatch
    assert "bf16" not in calls[-1]


def compiled(source):
    """The sources that the compiler was called for since the last look."""
    log = source / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(word for line in lines for word in line.split() if word.endswith(".cpp"))


def test_a_second_installation_compiles_what_has_changed_alone(source):
    """`make serve` installs the project, and `make test` builds the extension in place: each file is compiled once."""
    compiler = source / "compiler"
    compiler.write_text(OLD_COMPILER.replace("*bf16.cpp*", "*nothing*").format(log=source / "log"))
    compiler.chmod(stat.S_IRWXU)
    compile_with(source, compiler)
    assert len(compiled(source)) > 10
    shutil.rmtree(next((source / "build").glob("lib.*")))  # an installation builds elsewhere, and deletes that
    for library in (source / PACKAGE).glob("_native*.so"):
        library.unlink()
    _, built = compile_with(source, compiler)
    assert built and not compiled(source)
    changed = source / PACKAGE / "native" / "tape.cpp"
    changed.write_text(changed.read_text() + "// changed\n")
    later = changed.stat().st_mtime + 10
    os.utime(changed, (later, later))
    _, built = compile_with(source, compiler)
    assert built and compiled(source) == [str(PACKAGE / "native" / "tape.cpp")]
    compile_with(source, compiler, "--force")
    assert len(compiled(source)) > 10


PATIENT_COMPILER = """#!/bin/sh
# Ends once another call has begun, or after ten seconds in vain.
echo "$@" >> {log}
if [ "$(wc -l < {log})" -lt 2 ]; then
    for _ in $(seq 100); do [ "$(wc -l < {log})" -ge 2 ] && break; sleep 0.1; done
    [ "$(wc -l < {log})" -ge 2 ] || exit 1
fi
while [ "$1" != "-o" ]; do shift; done
touch "$2"
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="needs an instruction set to leave out")
def test_files_are_compiled_in_parallel(source):
    compiler = source / "compiler"
    compiler.write_text(PATIENT_COMPILER.format(log=source / "log"))
    compiler.chmod(stat.S_IRWXU)
    error, built = compile_with(source, compiler)
    assert built and not error.exists()
    calls = (source / "log").read_text().splitlines()
    dispatch = next(call for call in calls if "dispatch.cpp" in call)
    lone = next(call for call in calls if "kernels_" in call and "generic" not in call)
    name = lone[lone.index("kernels_") + 8 : lone.index(".cpp")]
    assert f"-DCORE_HAVE_{name.upper()} " in dispatch, "the first call waited for a second one in vain"


def test_a_read_only_installation_is_a_sentence(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="is read-only"):
        build.rebuild()


def test_an_installation_without_sources_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    with pytest.raises(UserError, match=r"has no setup\.py"):
        build.rebuild()

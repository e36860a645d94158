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
from core_platforms.cpu import build as build_kernels

ROOT = Path(__file__).resolve().parents[2] / "plugins/platforms"
PACKAGE = Path("core_platforms/cpu")
NO_MACROS = 'case "$*" in *-dM*) exit 1;; esac'
"""Of a compiler that cannot tell which instruction sets this machine has: all are compiled then."""
OLD_COMPILER = f"""#!/bin/sh
# Knows no BF16, writes empty outputs, and remembers how it was called.
{NO_MACROS}
echo "$@" >> {{log}}
case "$*" in *bf16.cpp*) echo "error: unrecognized option" >&2; exit 1;; esac
while [ "$1" != "-o" ]; do shift; done
touch "$2"
"""


@pytest.fixture
def source(tmp_path):
    shutil.copytree(ROOT / PACKAGE / "native", tmp_path / PACKAGE / "native")
    shutil.copy(ROOT / "setup.py", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "README.md").write_text("")
    return tmp_path


def build(source, compiler, *options, sets="host"):
    tools = {name: str(compiler) for name in ("CC", "CXX", "LDSHARED", "LDCXXSHARED")}
    command = [sys.executable, str(source / "setup.py"), "build_ext", "--inplace", *options]
    environment = {**os.environ, **tools, "CORE_NATIVE": sets}
    return subprocess.run(
        command, cwd=source.parent, capture_output=True, text=True, timeout=100, check=False, env=environment
    )


def compile_with(source, compiler, *options, sets="host"):
    done = build(source, compiler, *options, sets=sets)
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


def reads(call):
    """Whether a call asks for the text of a source alone, and compiles nothing."""
    return " -E " in call


def calls_of(source, text):
    """The calls of a compiler that notes them, and the one for the dispatch."""
    compiler = source / "compiler"
    compiler.write_text(text.format(log=source / "log"))
    compiler.chmod(stat.S_IRWXU)
    error, built = compile_with(source, compiler)
    assert built and not error.exists()
    calls = [call for call in (source / "log").read_text().splitlines() if not reads(call)]
    return calls, next(call for call in calls if "dispatch.cpp" in call)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="needs instruction sets to leave out")
def test_an_old_compiler_leaves_out_what_it_does_not_know(source):
    calls, dispatch = calls_of(source, OLD_COMPILER)
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
    return sorted(word for line in lines if not reads(line) for word in line.split() if word.endswith(".cpp"))


@pytest.mark.slow
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
    _, built = compile_with(source, compiler)
    assert built and compiled(source) == [str(PACKAGE / "native" / "tape.cpp")]
    for file in (source / PACKAGE / "native").iterdir():  # as after a fresh checkout
        os.utime(file)
    _, built = compile_with(source, compiler)
    assert built and not compiled(source)
    compile_with(source, compiler, "--force")
    assert len(compiled(source)) > 10


READING_COMPILER = """#!/bin/sh
# Reads sources as the machine's own compiler does, and writes empty outputs.
echo "$@" >> {log}
case "$*" in *-dM*) exit 1;; *" -E "*) exec c++ "$@";; esac
while [ "$1" != "-o" ]; do shift; done
touch "$2"
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")
def test_a_header_counts_for_those_that_include_it(source):
    compiler = source / "compiler"
    compiler.write_text(READING_COMPILER.format(log=source / "log"))
    compiler.chmod(stat.S_IRWXU)
    compile_with(source, compiler)
    compiled(source)
    header = source / PACKAGE / "native" / "ranks.h"
    header.write_text(header.read_text() + "// a comment\n")
    compile_with(source, compiler)
    assert not compiled(source)
    header.write_text(header.read_text() + "constexpr int another = 1;\n")
    compile_with(source, compiler)
    users = [file for file in header.parent.glob("*.cpp") if '#include "ranks.h"' in file.read_text()]
    assert compiled(source) == sorted(str(PACKAGE / "native" / user.name) for user in users) != []


HOST_COMPILER = """#!/bin/sh
# For a processor of the second best set that the machine's kind has. Writes empty outputs and remembers its sources.
case "$*" in
    *-dM*-march=native*|*-march=native*-dM*) printf '#define __PLAIN__ 1\\n#define {second} 1\\n'; exit;;
    *{best_flag}*-dM*) printf '#define __PLAIN__ 1\\n#define {second} 1\\n#define __BEST__ 1\\n'; exit;;
    *{second_flag}*-dM*) printf '#define __PLAIN__ 1\\n#define {second} 1\\n'; exit;;
    *-dM*) printf '#define __PLAIN__ 1\\n'; exit;;
esac
echo "$@" >> {log}
case "$*" in *{fails}*) echo "error: unrecognized option" >&2; exit 1;; esac
while [ "$1" != "-o" ]; do shift; done
touch "$2"
"""
SETS = {
    "x86_64": {"best_flag": "-mavx512bf16", "second_flag": "-mavx512vnni", "order": ["avx512_vnni", "avx512"]},
    "aarch64": {"best_flag": "+bf16", "second_flag": "+dotprod", "order": ["neon_dot", "neon"]},
}


def tables(sources):
    """The instruction sets whose kernels are among some sources, each of which is compiled in two parts."""
    names = [Path(name).stem.removeprefix("kernels_") for name in sources if "kernels_" in name]
    return list(dict.fromkeys(names))


@pytest.fixture
def host_compiler(source):
    """host_compiler(fails=PATTERN) -> a compiler for a processor that has all but the best set of this machine's kind."""
    if platform.machine() not in SETS:
        pytest.skip("needs instruction sets to choose among")
    row = SETS[platform.machine()]

    def make(fails="nothing"):
        compiler = source / "compiler"
        flags = {name: row[name] for name in ("best_flag", "second_flag")}
        compiler.write_text(HOST_COMPILER.format(second="__SECOND__", log=source / "log", fails=fails, **flags))
        compiler.chmod(stat.S_IRWXU)
        return compiler

    make.order = row["order"]
    return make


def test_an_installation_compiles_the_best_set_of_this_processor_alone(source, host_compiler):
    _, built = compile_with(source, host_compiler())
    assert built and tables(compiled(source)) == host_compiler.order[:1]


def test_the_kernels_of_a_set_are_two_files_that_two_processors_compile(source, host_compiler):
    compile_with(source, host_compiler())
    calls = [line.split() for line in (source / "log").read_text().splitlines() if not reads(line)]
    parts = [(word, call[call.index("-o") + 1]) for call in calls for word in call if word.startswith("-DCORE_PART")]
    assert sorted(word for word, _ in parts) == ["-DCORE_PART=1", "-DCORE_PART=2"]
    assert len({made for _, made in parts}) == 2


EVERY_SET = """#!/bin/sh
# For a processor that has every set of its kind. Writes empty outputs and remembers its sources.
case "$*" in *-dM*) printf '#define __PLAIN__ 1\\n'; exit;; esac
echo "$@" >> {log}
while [ "$1" != "-o" ]; do shift; done
touch "$2"
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the sets of x86-64")
def test_a_processor_with_tiles_gets_the_next_set_too(source):
    """A system may refuse tiles to a process; with `amx` alone nothing would run there."""
    compiler = source / "compiler"
    compiler.write_text(EVERY_SET.format(log=source / "log"))
    compiler.chmod(stat.S_IRWXU)
    _, built = compile_with(source, compiler)
    assert built and tables(compiled(source)) == ["amx", "avx512_vnni_bf16"]


def test_a_set_that_the_assembler_does_not_know_gives_way_to_the_next_best(source, host_compiler):
    best, second = host_compiler.order
    error, built = compile_with(source, host_compiler(fails=f"kernels_{best}.cpp"))
    assert built and not error.exists()
    assert tables(compiled(source)) == [second, best]  # sorted; tried the other way round


def test_all_sets_after_those_of_the_host_compiles_what_is_missing(source, host_compiler):
    compiler = host_compiler()
    compile_with(source, compiler)
    begun = compiled(source)
    _, built = compile_with(source, compiler, sets="all")
    added = compiled(source)
    assert built and "generic" in tables(added) and not set(tables(added)) & set(tables(begun))
    assert [name for name in added if "kernels_" not in name] == [str(PACKAGE / "native" / "dispatch.cpp")]
    compile_with(source, compiler, sets="all")
    assert not compiled(source)


def test_every_set_that_this_processor_runs_and_no_other(source, host_compiler):
    compiler = host_compiler()
    _, built = compile_with(source, compiler, sets="here")
    made = set(tables(compiled(source)))
    assert built and {"generic", *host_compiler.order} <= made
    assert not {name for name in made if name.endswith("bf16")}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the sets of x86-64")
def test_few_sets_are_the_best_and_the_two_plainest(source):
    compiler = source / "compiler"
    compiler.write_text(EVERY_SET.format(log=source / "log"))
    compiler.chmod(stat.S_IRWXU)
    _, built = compile_with(source, compiler, sets="few")
    assert built and tables(compiled(source)) == ["amx", "avx2", "avx512_vnni_bf16", "generic"]


def test_sets_are_named_for_other_machines_and_wrong_names_are_refused(source, host_compiler):
    compiler = host_compiler(fails="kernels_generic.cpp")
    _, built = compile_with(source, compiler, sets=",".join(host_compiler.order))
    assert built and tables(compiled(source)) == sorted(host_compiler.order)
    refused = build(source, compiler, sets="avx9000")
    assert refused.returncode != 0 and not compiled(source)
    assert "CORE_NATIVE 'avx9000': expected host, few, here, all, or some of generic, " in refused.stderr
    error, _ = compile_with(source, compiler, sets="generic")  # asked for by name: nothing takes its place
    assert "unrecognized option" in error.read_text()


PATIENT_COMPILER = f"""#!/bin/sh
# Ends once another call has begun, or after ten seconds in vain.
{NO_MACROS}
echo "$@" >> {{log}}
if [ "$(wc -l < {{log}})" -lt 2 ]; then
    for _ in $(seq 100); do [ "$(wc -l < {{log}})" -ge 2 ] && break; sleep 0.1; done
    [ "$(wc -l < {{log}})" -ge 2 ] || exit 1
fi
while [ "$1" != "-o" ]; do shift; done
touch "$2"
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="needs an instruction set to leave out")
def test_files_are_compiled_in_parallel(source):
    calls, dispatch = calls_of(source, PATIENT_COMPILER)
    lone = next(call for call in calls if "kernels_" in call and "generic" not in call)
    name = lone[lone.index("kernels_") + 8 : lone.index(".cpp")]
    assert f"-DCORE_HAVE_{name.upper()} " in dispatch, "the first call waited for a second one in vain"


def test_a_read_only_installation_is_a_sentence(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="is read-only"):
        build_kernels.rebuild()


def test_an_installation_without_sources_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(build_kernels, "ROOT", tmp_path)
    with pytest.raises(UserError, match=r"has no setup\.py"):
        build_kernels.rebuild()

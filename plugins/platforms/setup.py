"""Builds the optional C++ extension of the `cpu` platform; everything else about the package is in pyproject.toml.

Each instruction set's source file is compiled with its own flags. The build's environment variable `CORE_NATIVE` names
the sets (see `named_sets`): by default the best one of this machine alone, since each takes most of a minute. Files are
compiled in parallel, and object files are kept in `build/` next to this file together with a digest of what they were
made of, so an editable installation, `build_ext --inplace` and a wheel share them and compile only what is missing or has
changed. A failed build does not fail the installation: the compiler's output is kept in `native_build_error.txt`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, CompileError, ExecError, OptionError

PACKAGE = "core_platforms.cpu"
NATIVE = Path(*PACKAGE.split("."), "native")
OBJECTS = Path("build", f"native.{sysconfig.get_platform()}")
"""Directory of object files. setuptools would put those of an editable installation into a directory that it deletes
afterwards.
"""
PARTS = (1, 2)
"""The kernels of one instruction set are two object files, which two processors compile at the same time: products and what
works on rows, then attention, states and what writes caches (CORE_PART in kernels.inc.h).
"""
COMMON = [
    "-O3",
    "-g0",
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-exceptions",
    "-fno-rtti",
    "-pthread",
]
COMMON += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-maybe-uninitialized"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"]
GENERIC: dict[str, list[str]] = {"generic": []}
X86_64 = {
    **GENERIC,
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512_vnni": [*AVX512, "-mavx512vnni"],
    "avx512_vnni_bf16": [*AVX512, "-mavx512vnni", "-mavx512bf16"],
    "amx": [*AVX512, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8"],
}
AARCH64 = {
    **GENERIC,
    "neon": [],
    "neon_dot": ["-march=armv8.2-a+dotprod"],
    "neon_bf16": ["-march=armv8.2-a+dotprod+i8mm+bf16"],
}
INSTRUCTION_SETS = {"x86_64": X86_64, "AMD64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}
"""Compiler flags of each instruction set, by machine type, the best set last."""


def known_sets() -> dict[str, list[str]]:
    """Return the instruction sets of this machine type with their flags, the best set last."""
    return INSTRUCTION_SETS.get(platform.machine(), GENERIC)


def named_sets(value: str) -> list[str]:
    """Return the instruction sets that a value of `CORE_NATIVE` names; empty for `host`, `few` and `here`, which depend on
    the processor.

    value: `host`, the best set of this processor; `few`, that one and the two plainest, with which tests compare it;
        `here`, every set that it runs; `all`; or comma-separated names, for example to build for another processor.

    Raises OptionError for anything else.
    """
    known = list(known_sets())
    if value in ("host", "few", "here", "all"):
        return known if value == "all" else []
    names = [name.strip() for name in value.split(",")]
    if not set(names) <= set(known):
        raise OptionError(
            f"CORE_NATIVE '{value}': expected host, few, here, all, or some of {', '.join(known)} (commas between)"
        )
    return names


@contextlib.contextmanager
def captured_output() -> Iterator[Path]:
    """Redirect the output of this process and its compilers to a file, and print it afterwards."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            yield log
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            print(log.read_text(encoding="utf-8", errors="replace"), end="")


class BuildNative(build_ext):
    """Build step that compiles one file per instruction set with its own flags."""

    def run(self) -> None:
        # Not in `build_extension`: setuptools would turn a wrong value into a warning, since the extension is optional.
        value = os.environ.get("CORE_NATIVE") or "host"
        self.named = named_sets(value)
        self.wanted = value
        self.package_directory = NATIVE.parent if self.inplace else Path(self.build_lib) / NATIVE.parent
        super().run()

    def build_extension(self, ext: Extension) -> None:
        error_file = self.package_directory / "native_build_error.txt"
        error_file.parent.mkdir(parents=True, exist_ok=True)
        with captured_output() as log:
            try:
                self._compile_and_link(ext)
            except (CCompilerError, ExecError, OSError) as error:
                sys.stderr.flush()
                words = log.read_text(encoding="utf-8", errors="replace")
                error_file.write_text(f"{words}\n{error}\n", encoding="utf-8")
                raise CompileError(f"the native kernels were not built; see {error_file}") from error
        error_file.unlink(missing_ok=True)

    def _sets_of_this_machine(self) -> list[list[str]]:
        """Return one set per group, the best one first (`amx` with the next one); or all in one group, when the compiler
        cannot tell which sets this processor runs.

        A set runs here if the compiler defines the set's macros for this processor too, so the flags above remain the
        only table.
        """
        here = self._macros(["-march=native"])
        if not here:
            return [list(known_sets())]
        plain = self._macros([])
        macros = {name: self._macros(flags) for name, flags in known_sets().items()}
        runnable = [name for name in reversed(macros) if macros[name] and macros[name] - plain <= here]
        groups = [[name] for name in runnable]
        if runnable[:1] == ["amx"]:  # a system may refuse its tiles to a process: the next best set is then needed
            groups[0] += runnable[1:2]
        return groups

    def _macros(self, flags: list[str]) -> set[str]:
        """Return the macros that the compiler defines for these flags; empty when it does not know the flags."""
        command = [*self.compiler.compiler_so, *flags, "-dM", "-E", "-x", "c++", os.devnull]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError):
            return set()
        return {line.split()[1] for line in done.stdout.splitlines() if line.startswith("#define ")}

    def _compile_and_link(self, ext: Extension) -> None:
        OBJECTS.mkdir(parents=True, exist_ok=True)
        groups = [self.named] if self.named else self._sets_of_this_machine()
        if self.wanted in ("few", "here"):
            runnable = [name for group in groups for name in group]
            plainest = list(known_sets())[:2]
            few = [*groups[0], *(name for name in runnable if name in plainest and name not in groups[0])]
            groups = [few if self.wanted == "few" else runnable]
        with ThreadPoolExecutor(num_processors()) as pool:
            first = self._begin(pool, groups[0])  # the slowest files first, so that the others fill the remaining time
            others = [pool.submit(self._object, source, [], []) for source in ext.sources if source != DISPATCH]
            tables = self._finished(first)
            for group in groups[1:]:  # an assembler may be older than its compiler and reject the best set
                tables = tables or self._finished(self._begin(pool, group))
            if not tables:
                raise CompileError("no instruction set's kernels were compiled")
            objects = [other.result() for other in others]
        objects.append(self._object(DISPATCH, [], [(f"CORE_HAVE_{name.upper()}", None) for name in tables]))
        path = self.get_ext_fullpath(ext.name)
        self.compiler.link_shared_object(
            [*itertools.chain.from_iterable(tables.values()), *objects],
            path,
            extra_postargs=["-pthread"],
            target_lang="c++",
        )

    def _begin(self, pool: ThreadPoolExecutor, names: Sequence[str]) -> dict[str, list[Future[str]]]:
        """Compile the kernels of some instruction sets in the background."""
        begun: dict[str, list[Future[str]]] = {}
        for name in names:
            source = str(NATIVE / f"kernels_{name}.cpp")
            begun[name] = [pool.submit(self._object, source, known_sets()[name], [], part) for part in PARTS]
        return begun

    def _finished(self, tables: dict[str, list[Future[str]]]) -> dict[str, list[str]]:
        """Return the object files of each set. Raises CompileError for a set that was requested by name."""
        made = {}
        for name, parts in tables.items():
            try:
                made[name] = [part.result() for part in parts]
            except CompileError as error:
                if self.named:
                    raise
                self.warn(f"leaving out the {name} kernels: {error}")
        return made

    def _object(self, source: str, flags: list[str], macros: list[tuple[str, str | None]], part: int = 0) -> str:
        """Return the object file of a source, compiled unless the cached one was made of the same text by the same command.

        Contents are compared, not times: a fresh checkout, a branch and an installation by pip have new times for old files.

        part: see PARTS; 0 for a source that is compiled whole.
        """
        arguments = [*COMMON, *flags]
        directory = str(OBJECTS / f"part{part}" if part else OBJECTS)
        macros = [*macros, ("CORE_PART", str(part))] if part else macros
        (made,) = self.compiler.object_filenames([source], output_dir=directory)
        # The record is written last: an interrupted build leaves none, and its object file is not used.
        record = Path(f"{made}.record")
        # Of the include directories only Python's own counts. The others name the virtual environment, whose headers
        # are not read; comparing them would make a wheel built in an isolated environment compile everything again.
        command = repr((self.compiler.compiler_so, sysconfig.get_path("include"), macros, arguments))
        files = digest(command.encode(), *(path.read_bytes() for path in (Path(source), *sorted(NATIVE.glob("*.h")))))
        was = record.read_text(encoding="utf-8").split() if record.exists() and not self.force else []
        if len(was) == 2 and was[0] == files:
            return made
        # Most files include few of the headers, so a change of another header leaves the text that is compiled unchanged.
        text = self._preprocessed(source, arguments, macros)
        compiled = digest(command.encode(), text) if text else ""
        if len(was) != 2 or was[1] != compiled or not compiled:
            record.unlink(missing_ok=True)
            self.compiler.compile([source], output_dir=directory, macros=macros, extra_postargs=arguments)
        record.write_text(f"{files} {compiled or '-'}", encoding="utf-8")
        return made

    def _preprocessed(self, source: str, arguments: list[str], macros: list[tuple[str, str | None]]) -> bytes:
        """Return what the compiler reads of a source and its headers; empty when it does not say."""
        defined = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in macros]
        include = f"-I{sysconfig.get_path('include')}"
        command = [*self.compiler.compiler_so, *arguments, *defined, include, "-E", "-P", source]
        try:
            return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return b""


def digest(*parts: bytes) -> str:
    """Return the SHA-256 of several texts."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


def num_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


NAMES = (
    "dispatch", "pool", "prefault", "pack", "pack_rows", "ops", "attention", "experts", "low_rank", "states", "tape",
    "pages", "file_pages", "ranks", "index", "module",
)  # fmt: skip
DISPATCH = str(NATIVE / "dispatch.cpp")  # the only file that knows which tables exist
SOURCES = [str(NATIVE / f"{name}.cpp") for name in NAMES]
if __name__ == "__main__":  # a test reads the tables above
    os.chdir(Path(__file__).resolve().parent)  # every path here is relative to this file
    setup(
        ext_modules=[Extension(f"{PACKAGE}._native", SOURCES, optional=True, py_limited_api=True)],
        cmdclass={"build_ext": BuildNative},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )

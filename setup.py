"""Builds the optional C++ extension of the `cpu` platform; everything else about the package is in pyproject.toml.

Each instruction set's file is compiled with its own flags, and left out when the compiler does not know them. Files are
compiled in parallel, and object files are kept, so a second build compiles only what has changed since.
A failed build does not fail the installation: the compiler's words are kept in `native_build_error.txt`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, CompileError, ExecError
from setuptools.modified import newer_group

NATIVE = Path("core_plugins/platforms/cpu/native")
OBJECTS = Path("build", f"native.{sysconfig.get_platform()}")
"""Object files. setuptools would put those of an editable installation into a directory that it deletes afterwards."""
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
X86_64 = {
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512_vnni": [*AVX512, "-mavx512vnni"],
    "avx512_vnni_bf16": [*AVX512, "-mavx512vnni", "-mavx512bf16"],
}
AARCH64 = {
    "neon": [],
    "neon_dot": ["-march=armv8.2-a+dotprod"],
    "neon_bf16": ["-march=armv8.2-a+dotprod+i8mm+bf16"],
}
INSTRUCTION_SETS = {"x86_64": X86_64, "AMD64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


@contextlib.contextmanager
def captured_output() -> Iterator[Path]:
    """Send what this process and its compilers print to a file, and print it afterwards."""
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
    """Compiles one file an instruction set with its own flags."""

    def run(self) -> None:
        self.package_directory = NATIVE.parent if self.inplace else Path(self.build_lib) / NATIVE.parent
        super().run()

    def build_extension(self, ext: Extension) -> None:
        error_file = self.package_directory / "native_build_error.txt"
        error_file.parent.mkdir(parents=True, exist_ok=True)
        if not self.force and not newer_group(ext.depends, self.get_ext_fullpath(ext.name), "newer"):
            return
        with captured_output() as log:
            try:
                self._compile_and_link(ext)
            except (CCompilerError, ExecError, OSError) as error:
                sys.stderr.flush()
                words = log.read_text(encoding="utf-8", errors="replace")
                error_file.write_text(f"{words}\n{error}\n", encoding="utf-8")
                raise CompileError(f"the native kernels were not built; see {error_file}") from error
        error_file.unlink(missing_ok=True)

    def _compile_and_link(self, ext: Extension) -> None:
        OBJECTS.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(num_processors()) as pool:
            tables: dict[str, Future[str]] = {}
            for name, flags in INSTRUCTION_SETS.get(platform.machine(), {}).items():
                tables[name] = pool.submit(self._object, str(NATIVE / f"kernels_{name}.cpp"), flags, [])
            others = [pool.submit(self._object, source, [], []) for source in ext.sources if source != DISPATCH]
            objects: list[str] = []
            macros: list[tuple[str, str | None]] = []
            for name, table in tables.items():
                try:
                    objects.append(table.result())
                except CompileError as error:
                    self.warn(f"leaving out the {name} kernels: {error}")
                else:
                    macros.append((f"CORE_HAVE_{name.upper()}", None))
            objects += [other.result() for other in others]
        objects.append(self._object(DISPATCH, [], macros))
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), extra_postargs=["-pthread"], target_lang="c++"
        )

    def _object(self, source: str, flags: list[str], macros: list[tuple[str, str | None]]) -> str:
        """The object file of one source, compiled unless the kept one is newer than all that it is made of."""
        arguments = [*COMMON, *flags]
        (made,) = self.compiler.object_filenames([source], output_dir=str(OBJECTS))
        # The command is written last: a build that was interrupted has none, and its object file is not used.
        record = Path(f"{made}.command")
        command = repr((self.compiler.compiler_so, self.compiler.include_dirs, macros, arguments))
        if not self.force and record.exists() and record.read_text(encoding="utf-8") == command:
            headers = map(str, sorted(NATIVE.glob("*.h")))
            if not newer_group([__file__, source, *headers], made, "newer"):
                return made
        record.unlink(missing_ok=True)
        self.compiler.compile([source], output_dir=str(OBJECTS), macros=macros, extra_postargs=arguments)
        record.write_text(command, encoding="utf-8")
        return made


def num_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


NAMES = (
    "kernels_generic",
    "dispatch",
    "pool",
    "prefault",
    "pack",
    "ops",
    "attention",
    "experts",
    "states",
    "tape",
    "module",
)
DISPATCH = str(NATIVE / "dispatch.cpp")  # the one file that knows which tables there are
SOURCES = [str(NATIVE / f"{name}.cpp") for name in NAMES]
DEPENDS = [__file__, *map(str, sorted(NATIVE.iterdir()))]
if __name__ == "__main__":  # a test reads the tables above
    setup(
        ext_modules=[
            Extension(
                "core_plugins.platforms.cpu._native", SOURCES, optional=True, py_limited_api=True, depends=DEPENDS
            )
        ],
        cmdclass={"build_ext": BuildNative},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )

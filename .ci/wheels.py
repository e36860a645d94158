"""`python .ci/wheels.py --present FILE INTO`: the wheels that a machine without a package index lacks.

Owns: which packages these are, and their download for that machine's Python. Never does: install anything.
Called by: the Makefile (`make gpu-lease`).
"""

from __future__ import annotations

import argparse
import email
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).resolve().parent))
from requirements import requirements

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)
"""Minor versions of glibc, as wheels name them, that the machine runs."""
OLDER = ("manylinux2014", "manylinux2010", "manylinux1")


def download(into: Path, python: str, wanted: list[str]) -> None:
    """Download one wheel for each requirement, and none of what it needs itself."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + [f"{name}_x86_64" for name in OLDER]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(into)]
    for name in platforms:
        command += ["--platform", name]
    subprocess.run([*command, *wanted], check=True)


def needs(wheel: Path, python: str) -> list[Requirement]:
    """Return what a wheel needs on that machine, without extras."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    found = [Requirement(text) for text in told]
    return [one for one in found if one.marker is None or one.marker.evaluate(environment)]


def collect(into: Path, python: str, wanted: list[str], present: set[str]) -> None:
    """Download all that is wanted and not present, and what that needs."""
    known = set(present)
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        lacking = {canonicalize_name(one.name): one for one in waiting}
        lacking = {name: one for name, one in lacking.items() if name not in known}
        if not lacking:
            return
        before = set(into.glob("*.whl"))
        download(into, python, [f"{one.name}{one.specifier}" for one in lacking.values()])
        known |= lacking.keys()
        waiting = [need for wheel in set(into.glob("*.whl")) - before for need in needs(wheel, python)]


def main() -> None:
    """Fill a folder with wheels, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--present", type=Path, required=True, help="names of the packages that the machine has")
    parser.add_argument("--python", default="3.12", help="the machine's Python")
    parser.add_argument(
        "--also", nargs="*", default=[], metavar="NAME", help="further packages, as the checkout asks for them"
    )
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="packages that are left out")
    parser.add_argument("--most", type=float, default=10, help="MiB that the folder may take")
    parser.add_argument("into", type=Path, help="folder for the wheels; those of an earlier call are removed")
    parser.add_argument("--engine", action="store_true", help="what the distributions of this checkout need")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    for wheel in given.into.glob("*.whl"):
        wheel.unlink()
    own = [str(project.parent) for project in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))]
    known = {canonicalize_name(Requirement(text).name): text for text in requirements(own, None)}
    wanted = list(known.values()) if given.engine else []
    present = {canonicalize_name(name) for name in (*given.present.read_text(encoding="utf-8").split(), *given.without)}
    collect(given.into, given.python, [*wanted, *(known.get(name, name) for name in given.also)], present)
    wheels = sorted(given.into.glob("*.whl"))
    mib = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    print(
        f"{given.into}: {len(wheels)} wheels, {mib:.1f} MiB: {', '.join(wheel.name.split('-')[0] for wheel in wheels)}"
    )
    if mib > given.most:
        raise SystemExit(f"{given.into}: {mib:.1f} MiB, expected at most {given.most:g}; see --present and --also.")


if __name__ == "__main__":
    main()

"""Bandwidth of this machine's memory, for the benchmarks: `python -m benchmarks.bandwidth`.

Owns: the command alone; `core_commands.bench.bandwidth` measures. Called by: the other benchmarks, to print it beside their
figures.
"""

from core_commands.bench.bandwidth import MEGABYTES, read_bandwidth

__all__ = ["MEGABYTES", "read_bandwidth"]

if __name__ == "__main__":
    print(f"{read_bandwidth():.1f} GB/s")

"""The parts of `benchmarks/peers.py`: environments, checkpoints, contenders, scenarios, results and the report."""

"""The deterministic simulation of engine, owner and API processes: see `docs/simulation.md`."""

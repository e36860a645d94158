"""The first hours on a GPU: everything that was only counted so far, measured and compared in five stages of nine minutes.

Owns: what is measured, in which order, under which limits. Never does: change the engine.
Called by: `python -m benchmarks.lease STAGE`; see docs/gpu.md.
"""

"""The parts of `examples/train_draft.py`, which trains a draft for a model on the model's own answers."""

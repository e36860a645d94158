"""Shapes of models, without tensors: decoders, blocks, mixers, drafts and heads."""

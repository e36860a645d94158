"""The shape of a model, without tensors: decoders, blocks, mixers, drafts and heads."""

"""Gated delta rule over whole chunks, through flash-linear-attention, where it is installed."""

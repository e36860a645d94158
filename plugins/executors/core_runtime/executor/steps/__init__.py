"""The data of a step: its plan, batch, buffers and result."""

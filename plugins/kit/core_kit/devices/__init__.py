"""Fake devices and wires, which reveal callers that do not wait or copy as they must."""

"""The grammar plugin `llguidance`."""

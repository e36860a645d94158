"""A grammar plugin as it was written for contract 1."""

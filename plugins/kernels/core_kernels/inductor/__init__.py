"""The reference's operations, compiled by torch."""

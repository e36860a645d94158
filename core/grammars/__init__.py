"""Constraints on answers: their forms, and which backend honours all of one."""

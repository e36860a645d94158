"""Rows of model families, one row a family in files by lineage."""

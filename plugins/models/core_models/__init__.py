"""Model families, one row a family in files by lineage."""

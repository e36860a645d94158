"""The grammar plugin `xgrammar`."""

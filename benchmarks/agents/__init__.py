"""S9: agents whose histories grow turn by turn, over HTTP, beside other servers."""

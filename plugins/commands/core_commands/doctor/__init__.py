"""`core plugins doctor`: which changed plugin changed the answers, or the pace."""

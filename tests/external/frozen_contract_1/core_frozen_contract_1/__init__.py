"""One plugin of each kind, as contract 1 was when it began. Never edit this package: that it works unchanged is the point."""

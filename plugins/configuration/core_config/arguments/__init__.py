"""Engine arguments: the groups beyond those of the core, and every way to write and to read about them.

A group stands with the distribution that reads its values, since that is what they mean nothing without: almost all are read
where a configuration is made of them.
"""

"""Whether the order of `fit`'s ways is that of measured steps."""

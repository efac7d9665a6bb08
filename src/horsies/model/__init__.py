"""Nouns: pure values with no I/O, no clock and no event loop."""

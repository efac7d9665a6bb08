"""Chaos: load runs while everything that can break is broken, and a checker proves from what was written down that nothing went wrong."""

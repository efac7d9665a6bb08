"""How the rate holds when there is more of everything: `python -m benchmarks.growth`."""

"""How fast horsies is, beside the limits of the same server in the same run. `python -m benchmarks --help`."""

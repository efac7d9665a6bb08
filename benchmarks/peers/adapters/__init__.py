"""One module per system, run inside that system's own environment. They share `protocol` and nothing else."""

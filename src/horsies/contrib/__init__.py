"""Edges to other systems, each behind an extra: `horsies[prometheus]`, `horsies[otel]`, `horsies[django]`."""

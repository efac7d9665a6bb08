"""The project with horsies."""

"""Where older documents import from; `from horsies import ...` is the way."""

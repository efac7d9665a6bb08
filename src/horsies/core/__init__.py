"""Import paths that older documents use."""

"""Tools for the people who work on horsies; nothing here is installed with it."""

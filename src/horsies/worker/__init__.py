"""The parent process: the services that claim, dispatch and finish."""

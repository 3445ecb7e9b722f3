"""Programs that run in the machine, with the installed packages only."""

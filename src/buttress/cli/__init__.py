"""The command line: one file per command group, no logic, no torch until a command needs it."""

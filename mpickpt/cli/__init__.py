"""The `mpickpt` command: every command in a file of its own, loaded when it is asked for."""

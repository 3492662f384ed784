"""The verification gates: what mpickpt promises, proven on the cluster where it will be relied on."""

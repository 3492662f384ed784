"""Many owners: topology, channel, agreement, publication and restoration. Stands on store, format and state."""

"""From a spec to bound ranks, watched until the last has ended. Never imports torch: a launcher must start at once."""

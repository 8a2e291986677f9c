"""Which sample comes when, and on which rank: pure functions that feed and train share."""

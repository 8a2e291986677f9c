"""The nouns of topout: whatever crosses a wall between two rooms is defined here, with the standard library alone."""

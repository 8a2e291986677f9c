"""The parts of the page, a file each: they take data and give HTML, or an empty string where they have none."""

"""One rule a file: what it looks at, when it fires, what it advises; the file's docstring is `topout explain CODE`."""

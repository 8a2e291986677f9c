"""Complete training scripts, as a user would write them; `digits` is what `topout run` trains when given no script.

They stand inside the package so that an installed topout has its default job. Nothing in topout imports them: they are
started by path, like any script.
"""

"""Files out of packs for scripts that know nothing of packs: `topout run --packs` (docs/packed-input.md).

Inside a rank, and only where packs were asked for. A script that may be edited has better: `topout.Loader`.
"""

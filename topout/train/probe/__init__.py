"""The critical batch size measured by short runs from the same weights (docs/noise-scale.md).

Not free: it trains for as many samples as its largest batches need; the noise scale costs nothing and says less.
"""

from topout.train.probe.critical_batch import CriticalBatch, probe_batch

__all__ = ["CriticalBatch", "probe_batch"]

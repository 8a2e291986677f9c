"""The gradient noise scale of a run, measured while it trains (docs/noise-scale.md).

Not a knee predictor: it was 3 to 5 times below the measured critical batch where we checked; `topout.train.probe`
measures that one.
"""

from topout.train.noise_scale.estimate import Estimate
from topout.train.noise_scale.monitor import NoiseScale

__all__ = ["Estimate", "NoiseScale"]

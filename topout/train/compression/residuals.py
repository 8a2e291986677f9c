"""What rounding has held back of each parameter's gradient, to be added to the next one (error feedback).

Kept flat, bucket by bucket, because arithmetic on one long vector is quick; but it belongs to parameters: when buckets
change, each parameter's part moves into the new one. Reference: Karimireddy et al. 2019, Error Feedback Fixes SignSGD.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from topout.train.compression.bucket import Bucket


class Residuals:
    def __init__(self) -> None:
        self._flats: dict[tuple[str, ...], Tensor] = {}
        self._by_name: dict[str, Tensor] = {}
        """Views of the flat vectors, each in its parameter's shape."""

    def flat(self, bucket: Bucket, num_padded: int) -> Tensor:
        """The bucket's residual in float32, zeros after its end up to `num_padded`."""
        kept = self._flats.get(bucket.names)
        if kept is not None and kept.numel() == num_padded:
            return kept
        self._forget(bucket.names)
        flat = torch.zeros(num_padded, dtype=torch.float32, device=bucket.buffer.device)
        for number, (name, gradient) in enumerate(zip(bucket.names, bucket.gradients, strict=True)):
            view = flat.as_strided(gradient.size(), gradient.stride(), bucket.offset(number))
            if name in self._by_name:
                view.copy_(self._by_name[name])
            self._by_name[name] = view
        self._flats[bucket.names] = flat
        return flat

    def _forget(self, names: tuple[str, ...]) -> None:
        """Lets go of the vectors these parameters were in; their other parameters keep theirs by their views."""
        moving = set(names)
        self._flats = {key: flat for key, flat in self._flats.items() if moving.isdisjoint(key)}

    def state_dict(self) -> dict[str, Tensor]:
        return {name: view.detach().clone() for name, view in self._by_name.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._flats = {}
        # on the host: memory of a GPU would belong to this stream, and the lane, which reads it, to another
        self._by_name = {name: value.to("cpu", torch.float32, copy=True) for name, value in state.items()}

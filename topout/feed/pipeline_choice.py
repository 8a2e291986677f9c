"""The native pipeline where the library is there and knows the transform, its Python twin elsewhere.

`TOPOUT_FEED_PIPELINE=python` asks for the twin, to compare or to leave a suspected fault out.
"""

import os
from typing import Any

from topout.feed.augment import ImageTransform
from topout.feed.native_pipeline import NativeImagePipeline, can_run
from topout.feed.pack_set import PackSet
from topout.feed.pipeline import ImagePipeline, Pipeline
from topout.native.bindings import library


def image_pipeline(packs: PackSet, image: str, transform: ImageTransform, **options: Any) -> Pipeline:
    """`options` are those of ImagePipeline."""
    twin = ImagePipeline(packs, image, transform, **options)
    if os.environ.get("TOPOUT_FEED_PIPELINE") == "python" or not can_run(transform):
        return twin
    native = library()
    return twin if native is None else NativeImagePipeline(native, twin)

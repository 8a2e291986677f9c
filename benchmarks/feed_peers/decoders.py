"""Decoders of a wheel in threads: simplejpeg, PyTurboJPEG and OpenCV, each with OpenCV's resize.

`linear` rows do not antialias: a lighter task with aliased output, listed apart. OpenCV's area filter antialiases.
"""

import threading

import numpy as np

from feed_peers.adapter import Adapter
from feed_peers.pipeline import SIDE, crop_box, normalise, threaded


def simplejpeg_decoder():
    import simplejpeg

    return lambda data: simplejpeg.decode_jpeg(data, "RGB")


def turbojpeg_decoder():
    from turbojpeg import TJPF_RGB, TurboJPEG

    of_thread = threading.local()

    def decode(data):
        if not hasattr(of_thread, "decoder"):
            of_thread.decoder = TurboJPEG()
        return of_thread.decoder.decode(data, TJPF_RGB)

    return decode


def opencv_decoder():
    import cv2

    return lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def cut_and_resize(pixels, box, is_area):
    import cv2

    x, y, w, h = box
    shrinks = w > SIDE and h > SIDE
    filter_ = cv2.INTER_AREA if is_area and shrinks else cv2.INTER_LINEAR
    return cv2.resize(pixels[y : y + h, x : x + w], (SIDE, SIDE), interpolation=filter_)


def batches(decoder, is_area):
    def start(work):
        import cv2

        cv2.setNumThreads(1)
        decode = decoder()

        def one(data, out, draw):
            pixels = decode(data)
            box = crop_box(pixels.shape[1], pixels.shape[0], draw)
            normalise(cut_and_resize(pixels, box, is_area), out, draw.random() < 0.5)

        return threaded(work, one)

    return start


def forced(decoder, is_area):
    def cut(jpegs, boxes):
        decode = decoder()
        pairs = zip(jpegs, boxes, strict=True)
        return np.stack([cut_and_resize(decode(data), box, is_area) for data, box in pairs])

    return cut


def adapter(name, decoder, module, *, is_area):
    return Adapter(
        name=name, case="jpeg", environment="peers", start=batches(decoder, is_area), forced=forced(decoder, is_area),
        imports=("torch", "cv2", module), kind="peer" if is_area else "apart",
        note="antialiased where both sides shrink" if is_area else "not antialiased",
    )  # fmt: skip


WRITERS = ()
ADAPTERS = (
    adapter("simplejpeg + OpenCV area, 2 threads", simplejpeg_decoder, "simplejpeg", is_area=True),
    adapter("OpenCV + area, 2 threads", opencv_decoder, "cv2", is_area=True),
    adapter("simplejpeg + linear, 2 threads", simplejpeg_decoder, "simplejpeg", is_area=False),
    adapter("PyTurboJPEG + linear, 2 threads", turbojpeg_decoder, "turbojpeg", is_area=False),
)

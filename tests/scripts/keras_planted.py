"""Keras trainings with a known fault: each keeps its own stamps of the time it planted.

Usage: keras_planted.py FAULT FOLDER. Writes FOLDER/stamps.json on the monotonic clock: the ends of the steps, and the
intervals that were planted. LEGACY=1 takes tf_keras; KERAS_BACKEND and STEPS_PER_EXECUTION as their names say.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
    import tensorflow as tf
if os.environ.get("LEGACY"):
    import tf_keras as keras
else:
    import keras

import numpy as np

FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
PER_CALL = int(os.environ.get("STEPS_PER_EXECUTION", "1"))
STEPS, EPOCHS, BATCH, WIDTH = 20, 2, 128, 256
if FAULT in ("compute", "host"):
    STEPS, EPOCHS = 40, 1  # TensorFlow may trace again in a second epoch, which is the host's work, too
PLANTED_S = 0.04
NUM_SAVES = 24  # several times the half second that TensorFlow may spend on tracing a second epoch

planted: list[tuple[int, int]] = []
step_ends: list[int] = []
trained = threading.Condition()


class Stamps(keras.callbacks.Callback):
    """Last of the callbacks but for the one that plants: its stamps say when Keras was done with a step."""

    def on_train_batch_end(self, batch, logs=None):
        with trained:
            step_ends.append(time.monotonic_ns())
            trained.notify()


class Planting(keras.callbacks.Callback):
    """Does its work in the way of the training."""

    def on_train_batch_end(self, batch, logs=None):
        if FAULT == "host":
            plant(PLANTED_S)

    def on_epoch_end(self, epoch, logs=None):
        if FAULT == "checkpoint":
            for number in range(NUM_SAVES):
                start_ns = time.monotonic_ns()
                self.model.save(FOLDER / f"model-{number}.keras")
                planted.append((start_ns, time.monotonic_ns()))


class Model(keras.Sequential):
    """Knows how long its evaluations take, from before their first line to after their last."""

    def evaluate(self, *args, **kwargs):
        start_ns = time.monotonic_ns()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            planted.append((start_ns, time.monotonic_ns()))


def plant(seconds):
    start_ns = time.monotonic_ns()
    time.sleep(seconds)
    planted.append((start_ns, time.monotonic_ns()))


def batches():
    """Batch n is begun when step n - 1 has ended, so that no prefetching hides what is planted."""
    rng = np.random.default_rng(0)
    for number in range(STEPS):
        with trained:
            trained.wait_for(lambda wanted=number: len(step_ends) % STEPS == wanted or PER_CALL > 1, timeout=10)
        plant(PLANTED_S)
        yield rng.random((BATCH, WIDTH), dtype="float32"), rng.integers(0, 10, BATCH)


def samples(num_batches):
    rng = np.random.default_rng(0)
    return rng.random((num_batches * BATCH, WIDTH), dtype="float32"), rng.integers(0, 10, num_batches * BATCH)


FOLDER.mkdir(exist_ok=True)
keras.utils.set_random_seed(0)
width = 2048 if FAULT == "compute" else 512
model = Model([
    keras.layers.Input((WIDTH,)), keras.layers.Dense(width, activation="relu"),
    keras.layers.Dense(width, activation="relu"), keras.layers.Dense(10),
])  # fmt: skip
model.compile(
    optimizer="sgd",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    steps_per_execution=PER_CALL,
)
options = {"verbose": 0, "epochs": EPOCHS, "callbacks": [Stamps(), Planting()]}
if FAULT == "input":
    spec = (tf.TensorSpec((BATCH, WIDTH), tf.float32), tf.TensorSpec((BATCH,), tf.int64))
    model.fit(tf.data.Dataset.from_generator(batches, output_signature=spec), steps_per_epoch=None, **options)
elif FAULT == "evaluation":
    x, y = samples(STEPS)
    validation = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat(10)
    model.fit(x, y, batch_size=BATCH, validation_data=validation, **options)
else:
    x, y = samples(STEPS)
    model.fit(x, y, batch_size=BATCH, **options)
(FOLDER / "stamps.json").write_text(json.dumps({"step_ends_ns": step_ends, "planted_ns": planted}))
print(f"steps {len(step_ends)}")

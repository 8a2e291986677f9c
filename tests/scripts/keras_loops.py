"""Keras trainings written in every way, one after the other: keras_loops.py LOOP…

Each trains on 8 batches of 16 samples. LEGACY=1 takes tf_keras; KERAS_BACKEND as its name says.
"""

import os
import sys

import numpy as np

if os.environ.get("LEGACY"):
    import tf_keras as keras
else:
    import keras

STEPS, BATCH = 8, 16
RNG = np.random.default_rng(0)
X, Y = RNG.random((STEPS * BATCH, 8), dtype="float32"), RNG.integers(0, 3, STEPS * BATCH)


def model_of(kind=keras.Sequential, **options):
    model = kind([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(3)])
    model.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


def forever():
    while True:
        for start in range(0, len(X), BATCH):
            yield X[start : start + BATCH], Y[start : start + BATCH]


def dataset_of():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def arrays():
    model_of().fit(X, Y, batch_size=BATCH, verbose=0)


def dataset():
    model_of().fit(dataset_of(), verbose=0)


def generator():
    model_of().fit(forever(), steps_per_epoch=STEPS, verbose=0)


def set_in_a_generator():
    """TensorFlow runs the generator on a thread of its own, while the step waits for it."""
    import tensorflow as tf

    inner = dataset_of()

    def again():
        yield from iter(inner)

    model_of().fit(tf.data.Dataset.from_generator(again, output_signature=inner.element_spec), verbose=0)


def pydataset():
    class Batches(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):
        def __len__(self):
            return STEPS

        def __getitem__(self, index):
            return X[index * BATCH : (index + 1) * BATCH], Y[index * BATCH : (index + 1) * BATCH]

    model_of().fit(Batches(), verbose=0)


def eager():
    model_of(run_eagerly=True).fit(dataset_of(), verbose=0)


def xla():
    model_of(jit_compile=True).fit(dataset_of(), verbose=0)


def three_a_call():
    """The last call has two steps left."""
    model_of(steps_per_execution=3).fit(dataset_of(), verbose=0)


def four_a_call():
    model_of(steps_per_execution=4).fit(dataset_of(), verbose=0)


def mirrored():
    import tensorflow as tf

    with tf.distribute.MirroredStrategy().scope():
        model = model_of()
    model.fit(dataset_of(), verbose=0)


def callbacks():
    class Looking(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert logs["loss"] > 0

    model_of().fit(X, Y, batch_size=BATCH, verbose=2, callbacks=[Looking()])


def by_hand():
    model = model_of()
    for x, y in dataset_of():
        model.train_on_batch(x, y)


def two_models_in_turn():
    first, second = model_of(), model_of()
    for x, y in dataset_of():
        first.train_on_batch(x, y)
        second.train_on_batch(x, y)


def saves():
    """Two epochs of 6 steps, with a quarter of the data to validate on."""
    model_of().fit(
        X, Y, batch_size=BATCH, verbose=0, validation_split=0.25, epochs=2,
        callbacks=[keras.callbacks.ModelCheckpoint("best.keras"), keras.callbacks.BackupAndRestore("backup")],
    )  # fmt: skip


def torch_optim_inside():
    import torch

    class Own(keras.Sequential):
        own = None

        def train_step(self, data):
            x, y = data
            self.own = self.own or torch.optim.SGD(self.parameters(), lr=0.1)
            self.own.zero_grad()
            loss = self.compute_loss(y=y, y_pred=self(x))
            loss.backward()
            self.own.step()
            return {"loss": loss}

    model_of(Own).fit(X, Y, batch_size=BATCH, verbose=0)


def broken_clock():
    import tensorflow as tf

    def broken():
        raise RuntimeError("the clock is broken")

    tf.timestamp = broken
    dataset()


def endless():
    model_of().fit(forever(), steps_per_epoch=STEPS, epochs=10_000, verbose=0)


def own_function():
    """Nothing that Keras would be told of."""
    import tensorflow as tf

    model, optimizer = model_of(), keras.optimizers.SGD()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=y, y_pred=model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for x, y in dataset_of():
        step(x, y)


for name in sys.argv[1:]:
    globals()[name]()
print("all done")

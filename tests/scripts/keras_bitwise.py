"""Small Keras trainings whose every bit is printed: `DIGEST 0 CASE sha256` over losses and weights.

Run with and without the recorder, the digests must be equal. One thread, so that TensorFlow itself is the same twice.
"""

import hashlib

import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

import keras  # noqa: E402
import tf_keras  # noqa: E402

RNG = np.random.default_rng(0)
X, Y = RNG.random((160, 12, 12, 1), dtype="float32"), RNG.integers(0, 4, 160)


class Own(keras.Model):
    """A train step of the script's own, with TensorFlow's stateful random numbers in it."""

    def __init__(self):
        super().__init__()
        self.flat, self.out = keras.layers.Flatten(), keras.layers.Dense(4)

    def call(self, x):
        return self.out(self.flat(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x + tf.random.normal(tf.shape(x))))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class OwnLegacy(tf_keras.Model):
    """As above, in the graph that also asks for the batch."""

    def __init__(self):
        super().__init__()
        self.flat, self.out = tf_keras.layers.Flatten(), tf_keras.layers.Dense(4)

    def call(self, x):
        return self.out(self.flat(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x + tf.random.normal(tf.shape(x))))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def layers_of(package):
    return package.Sequential([
        package.layers.Input((12, 12, 1)), package.layers.Conv2D(4, 3, activation="relu"),
        package.layers.BatchNormalization(), package.layers.Flatten(), package.layers.Dropout(0.3),
        package.layers.Dense(4),
    ])  # fmt: skip


def train(package, make_model, **options):
    package.utils.set_random_seed(1)
    model = make_model()
    loss = package.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, **options)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(160, seed=3).batch(16)
    history = model.fit(dataset, epochs=3, verbose=0, validation_data=(X[:32], Y[:32]))
    digest = hashlib.sha256(repr(sorted(history.history.items())).encode())
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    return digest.hexdigest()


CASES = {
    "graph": lambda: train(keras, lambda: layers_of(keras), jit_compile=False),
    "compiled by XLA": lambda: train(keras, lambda: layers_of(keras), jit_compile=True),
    "several steps a call": lambda: train(keras, lambda: layers_of(keras), steps_per_execution=4),
    "eager": lambda: train(keras, lambda: layers_of(keras), run_eagerly=True),
    "own train step": lambda: train(keras, Own),
    "tf_keras": lambda: train(tf_keras, lambda: layers_of(tf_keras)),
    "tf_keras several steps a call": lambda: train(tf_keras, lambda: layers_of(tf_keras), steps_per_execution=5),
    "tf_keras own train step": lambda: train(tf_keras, OwnLegacy),
}
for name, case in CASES.items():
    print(f"DIGEST 0 {name} {case()}", flush=True)

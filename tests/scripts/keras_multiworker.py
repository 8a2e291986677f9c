"""An ordinary training over several workers: MultiWorkerMirroredStrategy, which finds its place in TF_CONFIG.

With tf_keras, since the fit of Keras 3 fails under this strategy (keras-team/keras#20585, open; seen with 3.15).
"""

import json
import os

import numpy as np
import tensorflow as tf
import tf_keras as keras

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]

rng = np.random.default_rng(0)
x = rng.random((1024, 16), dtype="float32")
y = (x.sum(axis=1) > 8).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(64)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA

with strategy.scope():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.layers.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1),
    ])  # fmt: skip
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.BinaryCrossentropy(from_logits=True))
history = model.fit(dataset.with_options(options), epochs=2, steps_per_epoch=16, verbose=0)
weights = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
print(f"rank {rank} of {strategy.num_replicas_in_sync}", flush=True)
print(f"LOSS {history.history['loss'][-1]:.6f} WEIGHTS {weights:.6f}", flush=True)

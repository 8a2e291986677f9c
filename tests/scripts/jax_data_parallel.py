"""An ordinary data-parallel JAX training: `jax.distributed.initialize()` without arguments, a shard a process."""

import jax

jax.distributed.initialize()

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

mesh = Mesh(np.array(jax.devices()), ("data",))
by_rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
num_rows = 32 * jax.device_count()


def loss_of(weights, x, y):
    return jnp.mean((x @ weights - y) ** 2)


@jax.jit
def step(weights, x, y):
    loss, gradient = jax.value_and_grad(loss_of)(weights, x, y)
    return weights - 0.05 * gradient, loss


def shard(rows):
    """This process's part of a batch that all processes draw alike."""
    own = np.array_split(rows, jax.process_count())[jax.process_index()]
    return jax.make_array_from_process_local_data(by_rows, own)


rng = np.random.default_rng(0)
truth = rng.random((16, 1), dtype="float32")
weights = jax.device_put(jnp.zeros((16, 1)), everywhere)
for _ in range(30):
    x = rng.random((num_rows, 16), dtype="float32")
    weights, loss = step(weights, shard(x), shard(x @ truth))
print(f"rank {jax.process_index()} of {jax.process_count()}", flush=True)
print(f"LOSS {float(loss):.6f}", flush=True)

"""Trains a linear model with JAX on all ranks: the batch is divided, and JAX sums the gradients.

    ddplaunch --nproc-per-node 2 docs/examples/jax_data_parallel.py
    ddplaunch --hostfile hosts --nproc-per-node gpu --port-range 30000-30100 docs/examples/jax_data_parallel.py

JAX brings its own coordinator. It listens on rank 0's node, at the port behind MASTER_PORT.
"""
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 30
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

# One GPU for each process, of those that it sees. A process on the CPU has one device.
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES", "")
DEVICE = int(os.environ["LOCAL_RANK"]) % len(VISIBLE.split(",")) if VISIBLE else int(os.environ["LOCAL_RANK"])

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    coordinator_address=f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}",
    num_processes=WORLD, process_id=RANK,
    local_device_ids=DEVICE)
mesh = Mesh(np.array(jax.devices()), ("data",))


@jax.jit
def step(weights, inputs, target):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((inputs @ w - target) ** 2))(weights)
    return weights - 0.1 * gradient, loss


weights = jnp.zeros(16)
random = np.random.default_rng(RANK)  # other data on each rank
for number in range(1, STEPS + 1):
    part = random.normal(size=(32, 16)).astype(np.float32)
    inputs = multihost_utils.host_local_array_to_global_array(part, mesh, PartitionSpec("data"))
    target = multihost_utils.host_local_array_to_global_array(part.sum(1), mesh, PartitionSpec("data"))
    weights, loss = step(weights, inputs, target)
    if RANK == 0 and number % 10 == 0:
        print(f"step {number}/{STEPS} loss {float(loss):.4f} on {jax.device_count()} devices", flush=True)
jax.distributed.shutdown()

"""FedJAX: its loop over clients, compiled."""

import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import fedjax
import jax

jax.config.update("jax_enable_x64", os.environ.get("JOB_DTYPE") == "float64")
import jax.numpy as jnp
from fedjax.core import for_each_client
from job import POOLS
from peer import Task

task = Task(sys.argv[1])
job = task.job


def conv(x, w, b):
    numbers = ("NCHW", "OIHW", "NCHW")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=numbers) + b[None, :, None, None]


def pool(x, by):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, by, by), (1, 1, by, by), "VALID")


def outputs(p, x):
    for by in POOLS.get(job.model, ()):
        x = jax.nn.relu(conv(x, p[0], p[1]))
        x = pool(x, by) if by > 1 else x
        p = p[2:]
    x = x.reshape(len(x), -1)
    for k in range(0, len(p) - 2, 2):
        x = jax.nn.relu(x @ p[k].T + p[k + 1])
    return x @ p[-2].T + p[-1]


def loss(p, batch):
    logs = jax.nn.log_softmax(outputs(p, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(logs, batch["y"][:, None], 1))


def step(p, batch):
    return [w - job.lr * g for w, g in zip(p, jax.grad(loss)(p, batch), strict=True)]


each = for_each_client.for_each_client(lambda shared, _: shared, step, lambda shared, p: p)
parameters = [jnp.asarray(p) for p in job.start()]
for t in range(1, task.rounds + 1):
    sets = {i: fedjax.ClientDataset(dict(zip(("x", "y"), task.rows(t, i), strict=True))) for i in job.cohort(t)}
    task.begin()
    clients = [(i, s.batch(batch_size=job.batch), jax.random.PRNGKey(0)) for i, s in sets.items()]
    ended = [(p, len(sets[i])) for i, p in each(parameters, clients)]
    parameters = jax.block_until_ready(fedjax.tree_util.tree_mean(iter(ended)))
    task.end()
task.tell(f"fedjax, jax {jax.__version__}", parameters)

"""Starts `train` as ranks without a launcher, and writes data for it."""

import os
import pathlib
import struct
import subprocess

from tests.support.ports import free_port

# Variables of the launcher that runs a test must not reach the ranks.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
                      "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "DDPLAUNCH_CONTROL")


def own_environment():
    return {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}


class Ranks:
    """The processes of a world. Rank 0 serves the store. All end with the `with` block. `sizes` are those of the nodes; without them no
    rank knows its node. `more` has additional arguments of some ranks, `environment` additional variables of all."""

    def __init__(self, command, world, sizes=None, more=None, environment=None):
        base = own_environment() | (environment or {})
        if world > 1 or sizes:
            base |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "train-test"}
        places = [{"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": str(node)}
                  for node, size in enumerate(sizes or ()) for local in range(size)]
        self.processes = []
        for rank in range(world):
            place = places[rank] if places else {"LOCAL_RANK": str(rank)} if world > 1 else {}
            env = base | place | ({"RANK": str(rank)} if place else {})
            self.processes.append(subprocess.Popen([*map(str, command), *(more or {}).get(rank, ())], env=env, text=True, stdout=subprocess.PIPE,
                                                   stderr=subprocess.PIPE))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def finish(self, timeout=240):
        """Returns (exit code, stdout, stderr) of each rank."""
        ends = [process.communicate(timeout=timeout) for process in self.processes]
        return [(process.returncode, out, err) for process, (out, err) in zip(self.processes, ends)]


def write_images(folder, part, images, labels):
    """Writes the two files of one part of a data set, "train" or "t10k", as MNIST has them."""
    pathlib.Path(folder, f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, len(images) // 784, 28, 28) + images)
    pathlib.Path(folder, f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(labels)) + labels)

"""The base of tests in which each ddplaunch is one node of a job on this machine (docs/users/per_node.md)."""

import pathlib

from tests.support.launch import LaunchTest, Outcome
from tests.support.ports import free_port


class PerNodeTest(LaunchTest):
    def setUp(self):
        super().setUp()
        self.env = {name: value for name, value in self.env.items() if not name.startswith("SLURM") and name not in (
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")}
        self.env["OMP_NUM_THREADS"] = "1"
        self.port = free_port()

    def node_options(self, rank, size=2, address="127.0.0.1"):
        """Returns the options of one node. With `rank` None it gets no rank."""
        node = ["--nnodes", size, "--master-addr", address, "--master-port", self.port]
        return node + (["--node-rank", rank] if rank is not None else [])

    def end_of(self, process, timeout=60):
        out, err = process.communicate(timeout=timeout)
        return Outcome(process.returncode, out, err, 0)

    def listens(self):
        """Returns whether a process listens at the port, without a connection to it."""
        rows = [row.split() for name in ("tcp", "tcp6") for row in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        return any(row[1].endswith(f":{self.port:04X}") and row[3] == "0A" for row in rows)

"""The command lines by which each launcher runs a command as 8 workers, with and without labels, locally and over SSH."""

import os
import pathlib
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DDP_BIN_DIR", SOURCE / "build/release/bin"))
TOOLS = BIN.parent / "tests"
WORKERS = 8


@dataclass
class Peer:
    name: str
    argv: list                 # the worker's command is appended, as one word if `as_text`
    env: dict = field(default_factory=dict)
    where: str = "local"       # or "ssh"
    labelled: bool = True
    as_text: bool = False      # the command goes through a shell on the node
    label_offset: int = 0      # difference between the last number of a label and the rank
    share: int = 1             # slow peers print 1/share of the lines
    shows: bool = True         # False: reads the output and drops it
    wrap: object = None        # makes the whole argv of the command if it is no prefix

    def command(self, command):
        command = [str(word) for word in command]
        if self.wrap:
            return self.wrap(command)
        return self.argv + ([shlex.join(command)] if self.as_text else command)


def has_torch():
    code = "import importlib.util,sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run(["/usr/bin/python3", "-c", code], check=False).returncode == 0


def ours(where, labelled, job_dir, more=()):
    argv = [str(BIN / "ddplaunch"), "--job-dir", str(job_dir), "--bars", "all", "--env", "OMP_NUM_THREADS=1", *map(str, more)]
    return Peer("ddplaunch", argv + ([] if labelled else ["--label", "none"]) + ["--"], where=where, labelled=labelled)


def local_peers(scratch, labelled):
    count = str(WORKERS)
    peers = [ours("local", labelled, scratch / "job", ["--nproc-per-node", count]),
             Peer("plain merger", [str(TOOLS / "plain_merger"), *(["-l"] if labelled else []), count]),
             # Like ddplaunch, this peer also writes the bytes of each worker to a file.
             Peer("plain merger with files", [str(TOOLS / "plain_merger"), *(["-l"] if labelled else []), "-d",
                                              str(scratch / "job"), count])]
    if not labelled:
        peers.append(Peer("cat of 8 fifos", [], wrap=lambda command: cat_of_fifos(scratch / "fifos", command)))
    if shutil.which("mpiexec.hydra"):
        peers.append(Peer("hydra", ["mpiexec.hydra", "-launcher", "fork", *(["-l"] if labelled else []), "-n", count]))
    if shutil.which("mpirun.openmpi"):
        peers.append(Peer("mpirun", ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                                     "-np", count, *(["--tag-output"] if labelled else [])]))
    if has_torch():
        peers.append(Peer("torchrun" + (" --tee 3" if labelled else ""),
                          ["/usr/bin/python3", str(SOURCE / "tests/bench/torchrun_peer.py"), "--standalone", "--nnodes=1",
                           f"--nproc_per_node={count}", "--monitor_interval=0.1", "--log_dir", str(scratch / "torch"),
                           *(["--tee", "3"] if labelled else []), "--no_python"]))
    for peer in peers:
        peer.labelled = labelled
    return peers


def cat_of_fifos(directory, command):
    directory.mkdir(exist_ok=True)
    ranks = " ".join(map(str, range(WORKERS)))
    return ["sh", "-c", f"cd {shlex.quote(str(directory))} || exit 1; rm -f f*; for i in {ranks}; do mkfifo f$i; "
            f"BENCH_RANK=$i {shlex.join(command)} > f$i & done; for i in {ranks}; do cat f$i & done; wait"]


def ssh_peers(scratch, nodes, labelled):
    """Returns the peers; `nodes` is the directory that tests/support/nodes made."""
    config, count = str(nodes / "ssh_config"), str(WORKERS)
    hosts = scratch / "hosts"
    listed = (nodes / "hosts").read_text().split()[:WORKERS]
    hosts.write_text("".join(host + "\n" for host in listed))
    peers = [ours("ssh", labelled, scratch / "job",
                  ["--hostfile", hosts, "--ssh-config", config, "--nproc-per-node", "1"])]
    # Our own SSH channels alone are the lower bound: every byte is read and dropped.
    peers.append(Peer("channel alone", [str(TOOLS / "ssh_fan_out"), "ssh", config, str(hosts)], shows=False))
    if not labelled:
        peers.append(Peer("xargs ssh", ["xargs", "-a", str(hosts), "-P", count, "-I{}", "ssh", "-n", "-F", config, "{}"],
                          as_text=True))
    if shutil.which("mpiexec.hydra"):
        peers.append(Peer("hydra", ["mpiexec.hydra", "-launcher", "ssh", "-iface", "lo", "-f", str(hosts), "-ppn", "1",
                                    "-n", count, *(["-l"] if labelled else [])],
                          {"HYDRA_LAUNCHER_EXTRA_ARGS": "-F " + config}))
    if shutil.which("mpirun.openmpi"):
        # The nodes share one host name and one /tmp, where Open MPI's daemons collide, so each daemon gets its own TMPDIR.
        agent = scratch / "orted-in-own-tmp"
        agent.write_text(f'#!/bin/sh\nexport TMPDIR={scratch}/ompi/$$; mkdir -p $TMPDIR; exec orted "$@"\n')
        agent.chmod(0o755)
        slots = scratch / "slots"
        slots.write_text("".join(f"{host} slots=1\n" for host in listed))
        peers.append(Peer("mpirun", ["mpirun.openmpi", "--allow-run-as-root", "--hostfile", str(slots), "-np", count,
                                     "--map-by", "ppr:1:node", "--bind-to", "none",
                                     *(["--tag-output"] if labelled else []),
                                     "--mca", "plm_rsh_agent", f"ssh -F {config}", "--mca", "orte_launch_agent", str(agent),
                                     "--mca", "opal_if_retain_loopback", "1", "--mca", "oob_tcp_if_include", "lo"]))
    if shutil.which("pdsh"):
        peers.append(Peer("pdsh", ["pdsh", "-R", "ssh", *([] if labelled else ["-N"]), "-f", "32", "-w", f"^{hosts}"],
                          {"PDSH_SSH_ARGS_APPEND": "-F " + config}, as_text=True, label_offset=2, share=2))
    if shutil.which("clush"):
        peers.append(Peer("clush", ["clush", *([] if labelled else ["-N"]), "-S", "-f", "64", "-o", "-F " + config,
                                    "--hostfile", str(hosts)], as_text=True, label_offset=2, share=16))
    for peer in peers:
        peer.where, peer.labelled = "ssh", labelled
    return peers


def srun_peer(slurm, labelled):
    count = str(WORKERS)
    return Peer("srun", ["srun", "-N", count, "-n", count, "--overcommit", "--mpi=none", *(["--label"] if labelled else [])],
                {"SLURM_CONF": str(slurm.conf)}, where="ssh", labelled=labelled, share=2)

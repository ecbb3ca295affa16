"""Starts a private Slurm for srun: slurmctld and N slurmd on loopback addresses of this machine, without munge."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

PROGRAMS = ("slurmctld", "slurmd", "srun", "sinfo")
PATH = "/usr/local/sbin:/usr/sbin:/sbin:" + os.environ.get("PATH", "/usr/bin:/bin")

SETTINGS = """ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={dir}/ctld
SlurmctldPidFile={dir}/ctld.pid
SlurmctldLogFile={dir}/ctld.log
SlurmdSpoolDir={dir}/d.%n
SlurmdPidFile={dir}/d.%n.pid
SlurmdLogFile={dir}/d.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
"""


def missing():
    """Returns the first program that is not installed, or None."""
    return next((name for name in PROGRAMS if not shutil.which(name, path=PATH)), None)


class SlurmCluster:
    """A running Slurm. `preexec` runs in each daemon before its program (to enter a control group). `settings` are further
    lines of slurm.conf. `ports` are slurmctld's and one for each node, 16817 and the next ones if none are given."""

    def __init__(self, scratch, nodes, preexec=None, ports=None, settings=""):
        self.dir = pathlib.Path(scratch) / "slurm"
        (self.dir / "ctld").mkdir(parents=True)
        self.conf = self.dir / "slurm.conf"
        self.env = dict(os.environ, PATH=PATH, SLURM_CONF=str(self.conf))
        host = socket.gethostname().split(".")[0]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        first, *others = ports or range(16817, 16818 + nodes)
        lines = [SETTINGS.format(host=host, dir=self.dir, user=user, port=first), settings]
        names = [f"n{number:03}" for number in range(nodes)]
        for number, (name, port) in enumerate(zip(names, others)):
            lines.append(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.{number // 250}.{number % 250 + 2} "
                         f"Port={port} CPUs=4 RealMemory=100 State=UNKNOWN\n")
        lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16\n")
        self.conf.write_text("".join(lines))
        self.daemons = []
        self.start(["slurmctld", "-D", "-f", self.conf], preexec)
        for name in names:
            self.start(["slurmd", "-D", "-f", self.conf, "-N", name], preexec)
        self.wait_until_idle(nodes)

    def start(self, argv, preexec):
        out = open(self.dir / "daemons.out", "ab")
        self.daemons.append(subprocess.Popen(list(map(str, argv)), env=self.env, stdin=subprocess.DEVNULL, stdout=out,
                                             stderr=out, start_new_session=True, preexec_fn=preexec))
        out.close()

    def wait_until_idle(self, nodes):
        for _ in range(120):
            seen = subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], env=self.env, capture_output=True, text=True)
            if seen.stdout.strip() == str(nodes):
                return
            time.sleep(0.5)
        self.stop()
        raise RuntimeError("slurm: the nodes do not become idle; see " + str(self.dir))

    def pids(self):
        return {daemon.pid for daemon in self.daemons}

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

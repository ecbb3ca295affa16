#!/usr/bin/env python3
"""Tests what another ordinary user of a node can do to a job: put a program where the agent is looked for, and load the store."""

import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import wait_until
from tests.support.machines import USERS, MachinesTest, main_side_by_side

# flood.py HOST PORT LISTERS: one connection makes many keys, LISTERS ask for all of them again and again, 20 send garbage and come back.
FLOOD = r"""
import os, selectors, socket, struct, sys
host, port, listers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
VALIDATE, SET, LIST_KEYS, PING = b"\x00" + struct.pack("<I", 0x3C85F7CE), b"\x01", b"\x11", b"\x0d" + struct.pack("<I", 1)

def text(value):
    return struct.pack("<Q", len(value)) + value

def connect():
    return socket.create_connection((host, port))

first = connect()
first.sendall(VALIDATE + b"".join(SET + text(b"%0200d" % number) + text(b"") for number in range(20_000)) + PING)
assert first.recv(4) == PING[1:]
selector = selectors.DefaultSelector()

def add(kind, data):
    peer = connect()
    peer.setblocking(False)
    selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE, (kind, data))

for _ in range(listers):
    add("lister", VALIDATE)
for _ in range(20):
    add("garbage", b"")
print("flooding", flush=True)
buffer = bytearray(1 << 20)
while True:
    for key, events in selector.select():
        kind, rest = key.data
        try:
            if events & selectors.EVENT_WRITE:
                rest = rest or (LIST_KEYS * 1000 if kind == "lister" else os.urandom(10_000))
                rest = rest[key.fileobj.send(rest):]
                selector.modify(key.fileobj, key.events, (kind, rest))
            if events & selectors.EVENT_READ and key.fileobj.recv_into(buffer) == 0:
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:  # the store has closed it
            selector.unregister(key.fileobj)
            key.fileobj.close()
            add(kind, VALIDATE if kind == "lister" else b"")
"""


class ForeignProgram(MachinesTest):
    """ann's installation is in /tmp/tools/bin of n0 only. On n1 another user may write at that path."""

    count = 1
    installation = "/tmp/tools/bin"

    def install(self, machine, tools, binaries):
        """Makes the directories of the installation in a machine, with these owners. Returns the path of the last one."""
        path = self.machines[machine].path(self.installation)
        path.mkdir(parents=True)
        for place, owner in ((path.parent, tools), (path, binaries)):
            place.chmod(0o755)
            os.chown(place, owner, owner)
        return path

    def setUp(self):
        super().setUp()
        path = self.install("n0", USERS["ann"], USERS["ann"])
        for name in ("ddplaunch", "ddplaunchd"):
            shutil.copy(self.machines.programs / name, path / name)

    def command(self, *args):
        words = super().command(*args)
        words[words.index(str(self.machines.programs / "ddplaunch"))] = f"{self.installation}/ddplaunch"
        return words

    def put_program(self, path, owner):
        """Puts a program into n1 that notes its execution and is a ddplaunchd in all other respects."""
        (path / "ddplaunchd").write_text(f'#!/bin/sh\necho "executed by $(id -un): $*" >>/tmp/executed\nexec {self.machines.programs}/ddplaunchd "$@"\n')
        (path / "ddplaunchd").chmod(0o755)
        os.chown(path / "ddplaunchd", owner, owner)

    def executed(self):
        note = self.machines["n1"].path("/tmp/executed")
        return note.read_text() if note.exists() else ""

    def test_in_a_directory_of_another_user(self):
        # push_fan_out_test.cc has more places that other users may write to.
        self.put_program(self.install("n1", USERS["mallory"], USERS["mallory"]), USERS["mallory"])
        done = self.run_job("sh", "-c", "tr '\\0' ' ' </proc/$PPID/cmdline")
        self.assert_code(done, 0)
        self.assertEqual(self.executed(), "", "another user's program was executed")
        self.assertIn("/run/ann/.cache/ddplaunch/agent-", done.out)
    def test_an_own_installation_is_used(self):
        # Everybody may write into /tmp, but nobody may replace ann's directory there.
        path = self.install("n1", USERS["ann"], USERS["ann"])
        self.put_program(path, USERS["ann"])
        self.assert_code(self.run_job("true"), 0)
        self.assertIn("executed by ann: ", self.executed())
        self.assertFalse(self.machines["n1"].path("/run/ann/.cache").exists())


class StoreFlood(MachinesTest):
    """Another user of a node, whose address may connect, sends the store as much as it takes."""

    lease_s = 10

    def test_200_connections_that_list_the_keys(self):
        worker = self.script("worker.sh", "#!/bin/sh\necho $MASTER_ADDR $MASTER_PORT\n"
                             f"until [ -e {self.dir}/flooding ]; do sleep 0.1; done\nexec sleep 12\n")
        process = self.start("--node-timeout", "5s", "--master-timeout", "5s", worker)
        where = process.stdout.readline().split()
        log = self.machines["n2"].path("/tmp/flood.log")
        self.machines["n2"].spawn(log, "/usr/bin/python3", "-S", "-E", self.script("flood.py", FLOOD), *where, 200, user="mallory")
        self.assertTrue(wait_until(lambda: "flooding" in log.read_text()), log.read_text())
        (self.dir / "flooding").touch()
        self.assert_code(self.finish(process), 0)


if __name__ == "__main__":
    main_side_by_side(4)

"""Ports for tests that give their programs one."""

import pathlib
import random
import socket


def free_port():
    """A TCP port that nobody listens on. It is none of those that the kernel gives to connections by itself: such a one may be
    taken again before the program under test has it."""
    first_of_kernel = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first_of_kernel // 2, first_of_kernel)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port

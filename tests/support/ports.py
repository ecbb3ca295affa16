"""Chooses ports for tests that assign one to their program."""

import pathlib
import random
import socket


def free_port():
    """Returns a free TCP port outside the range from which the kernel assigns ports to connections. A port in that range may
    be taken before the program under test binds it."""
    first_of_kernel = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first_of_kernel // 2, first_of_kernel)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port

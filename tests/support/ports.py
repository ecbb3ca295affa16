"""Chooses ports for tests that assign one to their program."""

import pathlib
import random
import socket

# A job takes its own ports from 10000 up (tcp_listener.cc), and would take one of these between probe and use. The servers of
# `nodes` use 2000 to 6999. free_port.h draws from the same ports by the same names.
FIRST, END = 7000, 10000

_reserved = []  # keeps the names bound


def free_port():
    """Returns a free TCP port that no other test gets until this process ends. The port is outside the range from which the
    kernel assigns ports to connections, since it might be taken before the program under test binds it.

    An abstract socket with the port's number in its name is the reservation. As the port itself, it belongs to the network
    namespace. It ends with this process and leaves no file."""
    first_of_kernel = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = min(END, first_of_kernel)
    ports = range(FIRST if end - FIRST >= 1000 else end // 2, end)
    for port in random.sample(ports, len(ports)):
        name = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                name.bind(f"\0test port {port}")
                probe.bind(("", port))
            except OSError:
                name.close()
                continue
        _reserved.append(name)
        return port
    raise RuntimeError(f"no port from {ports[0]} to {ports[-1]} is free")

"""Chooses ports for tests that assign one to their program."""

import contextlib
import pathlib
import random
import socket

# A job takes its own ports from 10000 up (tcp_listener.cc), and would take one of these between probe and use. The servers of
# `nodes` use 2000 to 5999, tests/gpu/steps.sh 6100 to 6999. FreePorts in tests/net/store_test_server.h draws from these by the same names.
FIRST, END = 7000, 10000

_reserved = []  # keeps the names bound


def free_port(count=1):
    """Returns the first of `count` consecutive free TCP ports that no other test gets until this process ends. They are outside the range from which the
    kernel assigns ports to connections, since one might be taken before the program under test binds it.

    An abstract socket with the port's number in its name is the reservation. As the port itself, it belongs to the network
    namespace. It ends with this process and leaves no file."""
    first_of_kernel = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = min(END, first_of_kernel)
    ports = range(FIRST if end - FIRST >= 1000 else end // 2, end - count + 1)
    for first in random.sample(ports, len(ports)):
        with contextlib.ExitStack() as kept:
            try:
                for port in range(first, first + count):
                    kept.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0test port {port}")
                    with socket.socket() as probe:
                        probe.bind(("", port))
            except OSError:
                continue
            _reserved.append(kept.pop_all())
            return first
    raise RuntimeError(f"of the ports from {ports[0]} to {ports[-1]} no {count} are free")

#!/usr/bin/env python3
"""Records the bytes between a TCPStore client of PyTorch and our store: store_record.py SERVER PYTHON > TRACE.

The traces in tests/unit/rendezvous/store/traces/ were recorded by this program. key_store_test.cc of the same room replays them,
so that a test knows the bytes of a PyTorch that is not installed. '>' is client to server, '<' server to client; a trace
holds one connection.
"""
import socket
import subprocess
import sys
import threading

CLIENT = """
import datetime, sys, torch, torch.distributed as dist
def ms(n): return datetime.timedelta(milliseconds=n)
def fails(call):
    try: call()
    except Exception: return
    sys.exit("no error")
s = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 4, False, ms(20000))
s.set("text", "value")
s.get("text")
s.add("sum", 5); s.add("sum", -7)
s.compare_set("cas", "", "one"); s.compare_set("cas", "one", "two"); s.compare_set("none", "some", "other")
s.wait(["text", "sum"])
fails(lambda: s.wait(["text", "never"], ms(100)))
s.add("sum", 1)
s.num_keys()
s.delete_key("cas"); s.delete_key("cas")
if hasattr(s, "append"):
    s.append("log", "a"); s.append("log", "bc"); s.get("log")
    s.multi_set(["m1", "m2"], ["1", ""]); s.multi_get(["m2", "m1"])
if hasattr(s, "check"): s.check(["text"]); s.check(["text", "never"])
if hasattr(s, "queue_push"):
    s.queue_push("q", "job"); s.queue_len("q"); s.queue_pop("q"); fails(lambda: s.queue_pop("q", block=False))
if hasattr(s, "barrier"): s.barrier("b", 1, ms(1000)); fails(lambda: s.barrier("b2", 2, ms(100)))
if hasattr(s, "list_keys"): s.delete_key("text"); s.list_keys()
print("version", torch.__version__)
"""


def pump(source, target, mark, lines):
    while data := source.recv(65536):
        lines.append(f"{mark} {data.hex(' ')}")
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


def main():
    server = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline().split()[1])
    listener = socket.create_server(("127.0.0.1", 0))
    client = subprocess.Popen(
        [sys.argv[2], "-c", CLIENT, str(listener.getsockname()[1])], stdout=subprocess.PIPE, text=True
    )
    threads = []
    recordings = []

    def serve():
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", port))
            lines = []
            recordings.append(lines)
            for arguments in ((near, far, ">", lines), (far, near, "<", lines)):
                threads.append(threading.Thread(target=pump, args=arguments))
                threads[-1].start()

    acceptor = threading.Thread(target=serve, daemon=True)
    acceptor.start()
    version = client.communicate(timeout=60)[0].split()[1]
    for thread in threads:
        thread.join()
    server.stdin.close()
    server.wait()
    lines = next(lines for lines in recordings if lines)  # the watch channel of torch <= 2.0 sends nothing
    print(f"# torch {version}, recorded by tests/net/store_record.py")
    print("\n".join(lines))


main()

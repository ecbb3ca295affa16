#!/usr/bin/env python3
"""Tests every operation of torch.distributed.TCPStore against a store at HOST PORT, with several client processes.

Works with torch 1.13 and later, and uses the operations of that version. Exit code 77: torch is not installed.
"""
import datetime
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch

torch, dist = pytorch.import_or_skip()

HOST, PORT = sys.argv[1], int(sys.argv[2])
OPTIONS = pytorch.store_options(dist)
PROCESSES = 4
ADDS = 100
checks = 0


def connect(seconds=20):
    return dist.TCPStore(HOST, PORT, None, False, datetime.timedelta(seconds=seconds), wait_for_workers=False,
                         **OPTIONS)


def expect(what, got, wanted):
    global checks
    checks += 1
    if got != wanted:
        print(f"torch {torch.__version__}: {what}: got {got!r}, wanted {wanted!r}")
        sys.exit(1)


def expect_error(what, call):
    global checks
    checks += 1
    try:
        call()
    except Exception:  # its class differs between versions
        return
    print(f"torch {torch.__version__}: {what}: no error")
    sys.exit(1)


def milliseconds(count):
    return datetime.timedelta(milliseconds=count)


def values(store):
    store.set("text", "value")
    expect("get", store.get("text"), b"value")
    store.set("text", "")
    expect("get of an empty value", store.get("text"), b"")
    big = "x" * (5 * 1024 * 1024)
    store.set("big", big)
    expect("get of 5 MiB", len(store.get("big")), len(big))
    store.set("käse key/with:all 'sorts'", "ok")
    expect("odd key", store.get("käse key/with:all 'sorts'"), b"ok")


def numbers(store):
    expect("add to a missing key", store.add("sum", 5), 5)
    expect("add", store.add("sum", 37), 42)
    expect("add of a negative", store.add("sum", -50), -8)
    expect("get of a sum", store.get("sum"), b"-8")
    store.set("set sum", "40")
    expect("add to text", store.add("set sum", 2), 42)
    expect("add of 0 reads", store.add("set sum", 0), 42)
    expect("big sums", store.add("big sum", 2**40), 2**40)


def compare_and_delete(store):
    expect("compare_set of a missing key, something expected", store.compare_set("cas", "old", "new"), b"old")
    expect("compare_set of a missing key", store.compare_set("cas", "", "first"), b"first")
    expect("compare_set that differs", store.compare_set("cas", "wrong", "second"), b"first")
    expect("compare_set", store.compare_set("cas", "first", "second"), b"second")
    expect("get after compare_set", store.get("cas"), b"second")
    before = store.num_keys()
    expect("delete", store.delete_key("cas"), True)
    expect("delete again", store.delete_key("cas"), False)
    expect("num_keys after delete", store.num_keys(), before - 1)
    store.set("cas", "again")
    expect("num_keys after set", store.num_keys(), before)


def waits(store):
    store.wait(["text", "sum"])
    store.wait(["text"], milliseconds(500))
    expect_error("wait for a missing key", lambda: store.wait(["never"], milliseconds(200)))
    # The client reuses the connection. The reply to the wait that it gave up must not be read as one of these replies.
    expect("add after a timed-out wait", store.add("after", 7), 7)
    expect_error("wait for one of two", lambda: store.wait(["text", "late"], milliseconds(200)))
    if not hasattr(store, "append"):
        # Before torch 2.0 a client gives up without a message. The server notices at the client's next request.
        expect("add of 0 after a timed-out wait", store.add("after", 0), 7)
    other = connect()
    other.set("late", "now")
    other.set("never", "now")
    expect("add after the key of a given-up wait came", store.add("after", 1), 8)
    expect("get after that", store.get("late"), b"now")
    store.set_timeout(milliseconds(200))
    expect_error("get of a missing key", lambda: store.get("missing"))
    store.set_timeout(milliseconds(20000))
    expect("get after a timed-out get", store.get("text"), b"")


def since_2_0(store):
    if not hasattr(store, "append"):
        return
    store.append("appended", "one")
    store.append("appended", " two")
    expect("append", store.get("appended"), b"one two")
    store.multi_set(["m1", "m2", "m3"], ["1", "", "333"])
    expect("multi_get", store.multi_get(["m3", "m1", "m2"]), [b"333", b"1", b""])
    expect("has_extended_api", store.has_extended_api(), True)
    many = [f"many{i}" for i in range(500)]
    store.multi_set(many, [str(i) for i in range(500)])
    expect("multi_get of 500", store.multi_get(many), [str(i).encode() for i in range(500)])


def newest(store):
    if hasattr(store, "check"):
        expect("check", store.check(["text", "sum"]), True)
        expect("check of a missing key", store.check(["text", "nowhere"]), False)
    if hasattr(store, "queue_push"):
        store.queue_push("queue", "a")
        store.queue_push("queue", "b")
        expect("queue_len", store.queue_len("queue"), 2)
        expect("queue_pop", store.queue_pop("queue"), b"a")
        expect("queue_pop", store.queue_pop("queue", block=False), b"b")
        expect("queue_len of an empty queue", store.queue_len("queue"), 0)
        expect_error("queue_pop of an empty queue", lambda: store.queue_pop("queue", block=False))
    if hasattr(store, "list_keys"):
        keys = set(store.list_keys())
        expect("list_keys", {"text", "sum", "m1"} <= keys and len(keys) == store.num_keys(), True)
    if hasattr(store, "barrier"):
        expect_error("barrier of two with one", lambda: store.barrier("alone", 2, milliseconds(200)))
        expect("add after a timed-out barrier", store.add("after", 1), 9)
    if hasattr(store, "clone"):
        copy = store.clone()
        copy.set("by clone", "1")
        expect("get of a clone's key", store.get("by clone"), b"1")


def prefixed(store):
    prefix = dist.PrefixStore("group", store)
    prefix.set("key", "in group")
    expect("PrefixStore", prefix.get("key"), b"in group")
    expect("PrefixStore's name", store.get("group/key"), b"in group")
    expect("PrefixStore add", prefix.add("n", 3), 3)


def worker(rank):
    """Runs one of PROCESSES: all wait for a key, count together, meet, and take turns at a queue."""
    store = connect()
    store.add("ready", 1)
    store.wait(["go", "go too"])
    for _ in range(ADDS):
        store.add("together", 1)
    if hasattr(store, "barrier"):
        store.barrier("all", PROCESSES, milliseconds(20000))
        expect("together after the barrier", store.add("together", 0), PROCESSES * ADDS)
    if hasattr(store, "queue_push"):
        expect("blocking queue_pop", store.queue_pop("work")[:4], b"task")
    store.set(f"done{rank}", str(rank))


def processes(store):
    children = []
    for rank in range(PROCESSES):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                worker(rank)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    while store.add("ready", 0) < PROCESSES:
        pass
    store.set("go", "")
    store.set("go too", "")
    if hasattr(store, "queue_push"):
        for rank in range(PROCESSES):
            store.queue_push("work", f"task {rank}")
    for rank in range(PROCESSES):
        expect("a child's key", store.get(f"done{rank}"), str(rank).encode())
    expect("adds of all", store.add("together", 0), PROCESSES * ADDS)
    for child in children:
        expect("a child's status", os.waitpid(child, 0)[1], 0)


def world(size=3):
    """Opens a store as init_process_group does: it counts itself under torch's own key and waits for no other rank."""
    stores = [dist.TCPStore(HOST, PORT, size, False, milliseconds(20000), **OPTIONS) for _ in range(size)]
    stores[0].set("of world", "1")
    expect("store with a world size", stores[-1].get("of world"), b"1")


def main():
    processes_store = connect()
    processes(processes_store)
    store = connect()
    for part in (values, numbers, compare_and_delete, waits, since_2_0, newest, prefixed):
        part(store)
    world()
    print(f"torch {torch.__version__}: {checks} checks passed")


main()

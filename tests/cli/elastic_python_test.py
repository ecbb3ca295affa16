#!/usr/bin/env python3
"""Tests the side of ddplaunch.elastic in the worker protocol with real PyTorch on Gloo (docs/users/elastic_python.md). The test is the agent.

The tests run with the distribution's torch (/usr/bin/python3). With --other they run with the interpreter that
DDP_TEST_TORCH_PYTHON names."""

import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.elastic_worker import LIMIT_S, MODULES, STORE, ElasticTest, ForkedProcess, Worker, enter_pytorch
from tests.support.launch import main

# $WAIT names a rank, and the place in attempt 1 at which that rank stops for good.
SCRIPT = """
import os, sys, time, torch
import torch.distributed as dist
from ddplaunch import elastic

def wait_before(what, world):
    if os.environ.get("WAIT") == f"{what} {world.rank}" and world.attempt == 1:
        print("waits", flush=True)
        time.sleep(1000)

@elastic.rejoin(backend="gloo")
def train(world, state):
    if not state:
        torch.manual_seed(os.getpid())
        state["model"] = torch.nn.Linear(8, 1)
        state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.01, momentum=0.9)
    model, optimizer = state["model"], state["optimizer"]
    wait_before("sync", world)
    by = world.sync(model, optimizer, extra=world.rank)
    assert os.environ["RANK"] == str(world.rank) and dist.get_world_size() == world.world_size
    print(f"begin {world.attempt} rank {world.rank} pid {os.getpid()} from {world.completed} by {by}", flush=True)
    second = dist.new_group()
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=second)
    for step in range(world.completed, int(sys.argv[1])):
        time.sleep(float(os.environ.get("PAUSE", 0)) if world.attempt == 0 else 0)
        optimizer.zero_grad()
        ddp(torch.ones(4, 8)).pow(2).sum().backward()
        optimizer.step()
        if os.environ.get("RAISE") == f"{step} {world.rank}":
            raise ValueError("bad batch")
        if os.environ.get("COMPUTE") == str(step):
            while True:
                time.sleep(0.001)
                world.step(step + 1, "computes")
        world.step(step + 1, "trains")
    weights = " ".join(repr(p) for p in torch.cat([p.flatten() for p in model.parameters()]).tolist())
    print(f"end rank {world.rank} pid {os.getpid()} weights {weights}", flush=True)
    return "returned"

print(train())
"""

# Rank 1 sends its part of a gather when the gather of rank 0 has failed, since rank 2 is lost. Gloo of rank 0 looks no more at that
# connection then, and rank 0 waits there for a broadcast.
BEHIND = """
import os, sys, time, torch
import torch.distributed as dist
from ddplaunch import elastic

@elastic.rejoin(backend="gloo")
def train(world, state):
    world.step(0)
    part, failed = torch.ones(1), sys.argv[0] + ".failed"
    if world.rank == 0:
        try:
            print("gathers", flush=True)
            dist.gather(part, [torch.ones(1) for _ in range(3)])
        except RuntimeError:
            open(failed, "w").close()
        dist.broadcast(part, 1)
    while world.rank == 2 or not os.path.exists(failed):
        time.sleep(0.01)
    dist.gather(part)
    print("sent", flush=True)
    while True:
        time.sleep(0.01)
        world.step(0)

train()
"""

# Runs before SCRIPT. In attempt 1 a rank reports what it has read from the store, and stops for good before the key $STOP_AT.
REPORTED_STORE = r"""
import os, re, signal
import torch.distributed as dist

class RecordedStore(dist.Store):
    kept = []  # c10d does not keep the Python side of a store alive

    def __init__(self, store):
        super().__init__()
        self.store = store
        self.kept.append(self)

    def set(self, key, value):
        if "STOP_AT" in os.environ:
            # Of two ranks the one with the lesser address waits, and a port stands first in it: now the others wait.
            value = re.sub(rb"(?s)\x02\0..\x7f\0\0\x01", bytes([2, 0, 255, 255, 127, 0, 0, 1]), value)
        self.store.set(key, value)

    def add(self, key, amount):
        return self.store.add(key, amount)

    def compare_set(self, key, expected, wanted):
        return self.store.compare_set(key, expected, wanted)

    def wait(self, keys, *timeout):
        self.stop_at(keys)
        self.store.wait(keys, *timeout)

    def get(self, key):
        self.stop_at([key])
        value = self.store.get(key)
        print("got", key, flush=True)
        return value

    def stop_at(self, keys):
        if any(key.endswith(os.environ.get("STOP_AT", "nowhere")) for key in keys):
            print("stops", flush=True)
            while True:
                signal.pause()

def recorded(*args, make=dist.rendezvous, **named):
    for store, rank, size in make(*args, **named):
        yield (RecordedStore(store) if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else store), rank, size

dist.rendezvous = recorded
"""


@unittest.skipUnless(STORE.exists(), "the tests' store is not built")
class ElasticModule(ElasticTest):
    text = SCRIPT

    def assert_all_end(self, workers):
        ends = [worker.end() for worker in workers]
        for code, out, err in ends:
            self.assertEqual((code, out.splitlines()[-1]), (0, "returned"), err)
        self.assertEqual(len({out.split("weights ")[1] for _, out, _ in ends}), 1, "weights differ")
        return [out for _, out, _ in ends]

    def trained(self, **environment):
        """Returns a team that has made some steps."""
        workers = self.team(100_000, **environment)
        workers[0].hear("step", lambda step: step >= 5)
        return workers

    def goes_on(self, workers, steps_held, attempt=1):
        """Replaces the lost last worker, and checks that all ranks continue from the held step."""
        workers[2] = self.worker(100_000)
        self.begin(attempt, workers, source=steps_held.index(max(steps_held)))
        self.assertEqual([worker.hear("ready")["ready"] for worker in workers], [attempt] * 3)
        for worker in workers:
            worker.hear("step", lambda step: step > max(steps_held))

    def test_survivors_continue_from_the_step_they_hold(self):
        workers = self.team(300, PAUSE="0.05")
        seen = workers[0].hear("step", lambda step: step >= 20)
        self.assertEqual(seen["in"], "trains")
        workers[2].kill()
        held = self.revoke(0, workers[:2])
        self.assertTrue(all(step >= 19 for step in held), held)
        workers[2] = self.worker(300)
        source = held.index(max(held))
        self.begin(1, workers, source=source)
        for worker, out in zip(workers, self.assert_all_end(workers)):
            self.assertIn(f"pid {worker.process.pid} from {max(held)} by {source}\n", out)

    def test_a_stopped_peer_blocks_no_other_rank(self):
        workers = self.trained()
        os.kill(workers[2].process.pid, signal.SIGSTOP)
        held = self.revoke(0, workers[:2])
        workers[2].kill()
        self.goes_on(workers, held)

    def test_a_collective_behind_one_that_failed(self):
        self.path = self.script("behind.py", BEHIND, mode=0o644)
        workers = self.team(0)
        self.read_line(workers[0], "gathers\n")
        workers[2].kill()
        self.read_line(workers[1], "sent\n")
        began = time.monotonic()
        self.revoke(0, workers[:2])
        self.assertLess(time.monotonic() - began, 5, "the agent would have killed this rank")

    def test_a_loss_while_the_process_group_is_created(self):
        workers = self.trained()
        workers[2].kill()
        held = self.revoke(0, workers[:2])
        self.begin(1, workers[:2], source=0, missing=1)
        self.assertEqual(self.revoke(1, workers[:2]), held)
        self.goes_on(workers, held, attempt=2)

    def test_a_loss_between_an_address_and_the_connection(self):
        """A rank that waits to be connected has no socket to shut down. It would hang until the deadline, or for Gloo's half
        hour."""
        self.path = self.script("script.py", REPORTED_STORE + SCRIPT, mode=0o644)
        workers = self.trained()
        workers[2].kill()
        held = self.revoke(0, workers[:2])
        # The new worker publishes its address and connects to no rank; the others wait for it.
        keys = "0//cpu//reconfigure/2/0" if hasattr(torch.distributed, "_reconfigure") else "0/0"
        workers[2] = self.worker(100_000, STOP_AT=f"{keys}/0")
        self.begin(1, workers, source=0)
        self.read_line(workers[2], "stops\n")
        for worker in workers[:2]:
            self.read_line(worker, f"got ddplaunch/1/{keys}/2\n")
        workers[2].kill()
        self.assertEqual(self.revoke(1, workers[:2]), held)
        self.goes_on(workers, held, attempt=2)

    def test_a_loss_during_sync_leaves_the_state_unchanged(self):
        workers = self.trained(WAIT="sync 0")
        workers[2].kill()
        held = self.revoke(0, workers[:2])
        workers[2] = self.worker(100_000)
        self.begin(1, workers, source=0)
        workers[0].hear("ready")
        # Rank 0, which has the state, sends nothing; the others wait for it.
        self.assertEqual(self.revoke(1, workers[1:]), [held[1], None])
        workers[0].kill()
        self.goes_on([workers[1], workers[2], None], [held[1], -1], attempt=2)

    def test_a_revoke_before_the_order_was_taken(self):
        workers = self.trained()
        workers[2].kill()
        held = self.revoke(0, workers[:2])
        for worker in workers[:2]:  # sends both lines at once
            worker.say(revoke=7, reason="foreign", deadline_ms=5000)
            worker.link.sendall(b'{"attempt":1,"rank":0,"world":3,"local_rank":0,"local_world":3,"node_rank":0,"nodes":1,'
                                b'"store":"127.0.0.1:1","agent_store":true}\n{"revoke":1,"reason":"x","deadline_ms":1}\n')
            self.assertEqual(worker.hear("revoked")["revoked"], 1)
        self.goes_on(workers, held, attempt=2)

    def test_a_loop_without_collectives_notices(self):
        workers = self.team(100_000, COMPUTE="3")
        for worker in workers[:2]:  # they repeat their reports
            worker.hear("step", lambda step: step == 4)
        workers[2].kill()
        self.assertEqual(self.revoke(0, workers[:2]), [4, 4])

    def test_a_failure_is_reported_and_the_next_order_awaited(self):
        workers = self.trained()
        workers[2].kill()
        said = self.hear_first(workers[:2], "failed")  # the other worker may wait for this one only, and notice nothing
        self.assertEqual(said["failed"], 0)
        self.assertIn("RuntimeError", said["error"])
        self.goes_on(workers, self.revoke(0, workers[:2]))

    def test_an_exception_of_the_script_is_passed_on(self):
        workers = self.team(100_000, RAISE="10 1")
        code, _, err = workers[1].end()
        self.assertEqual(code, 1)
        self.assertIn('raise ValueError("bad batch")', err)
        self.assertRegex(err.splitlines()[-1], r"^(\[rank1\]: )?ValueError: bad batch$")  # PyTorch 2 names the rank
        self.assertEqual(workers[0].hear("failed")["failed"], 0)

    def test_a_missing_control_socket_is_an_error(self):
        control = f"unix:{self.dir}/none"
        process = ForkedProcess(self.path, 1, DDPLAUNCH_CONTROL=control)
        _, err = process.communicate(LIMIT_S)
        self.assertEqual(process.returncode, 1)
        self.assertEqual(err.splitlines()[-1],
                         f"ddplaunch.elastic.LinkLost: cannot connect to the agent at DDPLAUNCH_CONTROL ({control}): No such file or directory. "
                         "In a container mount this path. If the variable is unset, the script runs without ddplaunch")

    def test_an_agent_that_leaves_without_an_order(self):
        worker = self.worker(1)
        worker.link.close()
        code, _, err = worker.end()
        self.assertEqual((code, err.splitlines()[-1]),
                         (1, "ddplaunch.elastic.LinkLost: the agent closed the link; ddplaunch.elastic supports version 1 of "
                             "the worker protocol"))

    def test_without_torch(self):
        done = subprocess.run([sys.executable, "-c", "import sys; sys.modules['torch'] = None; import ddplaunch.elastic"],
                              capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=str(MODULES)))
        self.assertIn("ImportError: ddplaunch.elastic: cannot import PyTorch: ", done.stderr)

    def test_without_ddplaunch_the_function_is_called_once(self):
        """By hand the world is one rank. The group is gone when the script ends: Gloo's threads abort a process that leaves it to the exit."""
        ends = "import torch.distributed as dist, atexit; atexit.register(lambda: print(dist.is_initialized()))\n"
        script = self.script("alone.py", ends + SCRIPT)
        launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        with unittest.mock.patch.dict(os.environ):
            for name in launched:
                os.environ.pop(name, None)
            for name, environment in (("by hand", {}), ("torchrun", launched)):
                with self.subTest(name):
                    process = ForkedProcess(script, 3, **environment)
                    out, err = process.communicate(LIMIT_S)
                    self.assertEqual((process.returncode, out.splitlines()[-2:]), (0, ["returned", "False"]), err)

    def test_a_script_that_cannot_work_says_so_at_its_end(self):
        function = "@elastic.rejoin(backend='gloo')\ndef train(world, state):\n    "
        for name, text, code, error in (
                ("a group of its own", "import torch.distributed as dist\n"
                 "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
                 "elastic.rejoin(lambda world, state: None)()", 1, "the script has called init_process_group()"),
                ("a group in the function", function + "torch.distributed.init_process_group('gloo')\ntrain()", 1,
                 "the function has called init_process_group()"),
                ("two trainings", function + "world.step(0)\ntrain()\ntrain()", 1, "can call a function of @elastic.run or @elastic.rejoin only once"),
                ("no optimizer", "elastic.run(torch.nn.Linear(1, 1))", 1, "elastic.run() got no optimizer"),
                ("caught", "try:\n    elastic.run(torch.nn.Linear(1, 1))\nexcept TypeError:\n    sys.exit(3)", 3, "elastic.run() got no optimizer"),
                ("caught, and another error", "try:\n    elastic.run(torch.nn.Linear(1, 1))\nexcept TypeError:\n    pass\n"
                 "raise ValueError('bad batch')", 1, None),
                ("caught, and another error meanwhile", "try:\n    elastic.run(torch.nn.Linear(1, 1))\nexcept TypeError:\n"
                 "    raise ValueError('bad batch')", 1, None)):
            with self.subTest(name):
                self.path = self.script("script.py", "import sys, torch\nfrom ddplaunch import elastic\n" + text)
                worker = Worker(self, self.path)
                worker.listener.settimeout(LIMIT_S)
                if error is None:
                    self.assertEqual(worker.end()[0], code)
                    self.assertFalse(select.select([worker.listener], [], [], 0)[0], "it has connected")
                    continue
                worker.connect()
                if "train()" in text:
                    self.begin(0, [worker])
                word = worker.hear("failed")
                self.assertEqual((word["failed"], word["retry"]), (0, False))
                self.assertIn(error, word["error"])
                ended, _, err = worker.end()
                self.assertEqual(ended, code)
                if code == 1:
                    self.assertRegex(err, f"ddplaunch.elastic.ScriptError: .*{re.escape(error)}")

    def test_objects_that_are_split_over_ranks_are_refused(self):
        """Rank 0's part of such an object would overwrite the parts of the others. Kinds that a release of PyTorch lacks are left out."""
        process = ForkedProcess(self.script("split.py", SPLIT))
        out, err = process.communicate(LIMIT_S)
        self.assertEqual(process.returncode, 0, err)
        lines = dict(line.split(": ", 1) for line in out.splitlines())
        self.assertEqual(lines.pop("whole objects"), "taken")
        self.assertIn("ZeroRedundancyOptimizer", lines)
        for kind, text in lines.items():
            self.assertRegex(text, r"^ScriptError: world\.sync\(\) got an? `?\w+`? (that is|that was later|with tensors that are) "
                             r"split over the ranks[ .;(]", kind)
        if "FSDP2" in lines:
            self.assertIn("(model is a FSDPSequential)", lines["object of torch.distributed.checkpoint"])
            self.assertIn("(state_dict() part.0.weight is a DTensor)", lines["object that shows its parts by state_dict() alone"])


# Each kind that this PyTorch has is registered in a world of one rank.
SPLIT = r"""
import torch
import torch.distributed as dist
from ddplaunch import elastic

def linear(): return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(linear().parameters(), torch.optim.SGD, lr=0.1)
def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel
    return FullyShardedDataParallel(linear(), device_id=torch.device("cpu"))
def fsdp1_whole(): return torch.nn.Sequential(linear(), fsdp1())
def fsdp1_inside(use_orig_params):
    from torch.distributed.fsdp import FullyShardedDataParallel
    inner = linear()
    kept.append(FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=use_orig_params))
    return inner
def fsdp2():
    from torch.distributed.fsdp import fully_shard
    return fully_shard(linear())
def fsdp2_optimizer(): return torch.optim.SGD(fsdp2().parameters(), lr=0.1)
def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    return parallelize_module(linear(), init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})
class Application:
    # As in the tutorial of torch.distributed.checkpoint, where Stateful is a protocol.
    def __init__(self): self.model = fsdp2()
    def state_dict(self): return {"model": self.model.state_dict()}
    def load_state_dict(self, state): raise AssertionError
class Hidden:
    def __init__(self):
        model = fsdp2()
        self.read = lambda: {"part": model.state_dict()}
    def state_dict(self): return self.read()
    def load_state_dict(self, state): raise AssertionError
def later():
    model = linear()
    world._is_synced = False  # as in another attempt
    world.sync(model)
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
    world.step(1)

kept = []

@elastic.rejoin(backend="gloo")
def train(one, state):
    global world
    world, model = one, linear()
    world.sync(model, torch.optim.SGD(model.parameters(), lr=0.1), elastic.StepSeed(1))
    print("whole objects: taken")
    for kind, make in {"ZeroRedundancyOptimizer": zero, "FSDP1": fsdp1, "FSDP2": fsdp2, "optimizer of FSDP2": fsdp2_optimizer,
                       "tensor parallel": tensor_parallel, "module with a part of FSDP1": fsdp1_whole,
                       "module that FSDP1 wraps": lambda: fsdp1_inside(False), "the same in place": lambda: fsdp1_inside(True),
                       "optimizer of FSDP1": lambda: torch.optim.SGD(fsdp1_inside(True).parameters(), lr=0.1),
                       "object of torch.distributed.checkpoint": Application, "dict of FSDP2": lambda: {"model": fsdp2().state_dict()},
                       "object that shows its parts by state_dict() alone": Hidden, "extra of FSDP2": fsdp2,
                       "FSDP2 after world.sync()": later}.items():
        try:
            made = make()
        except (ImportError, ValueError) as error:  # this release has no such class, or cannot import it with this Python
            continue
        except elastic.ScriptError as error:
            print(f"{kind}: {type(error).__name__}: {error}")
            continue
        try:
            made = ((torch.nn.Linear(1, 1),), made) if kind.startswith("extra") else ((torch.nn.Linear(1, 1), made), None)
            world.sync(*made[0], extra=made[1])
            print(f"{kind}: taken")
        except Exception as error:
            print(f"{kind}: {type(error).__name__}: {error}")

train()
"""


if __name__ == "__main__":
    enter_pytorch()
    import torch
    import torch.distributed
    import ddplaunch.elastic
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()  # imports the rest of PyTorch here, and not in each fork
    print("PyTorch", torch.__version__, flush=True)
    main()

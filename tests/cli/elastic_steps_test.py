#!/usr/bin/env python3
"""Tests the state that ddplaunch.elastic hands on after a loss (docs/users/elastic_python.md). The training has schedulers, a
gradient scaler, DataLoader workers and gradient accumulation. It ends bit-equal to an undisturbed one, or its state is
refused.

The tests run with the distribution's torch (/usr/bin/python3). With --other they run with the interpreter that
DDP_TEST_TORCH_PYTHON names."""

import contextlib
import hashlib
import io
import os
import pathlib
import random
import re
import socket
import sys
import textwrap
import threading
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.elastic_worker import STORE, ElasticTest, enter_pytorch
from tests.support.launch import SOURCE, main, wait_until

# $FAULT is a place in the loop and a step of attempt 0, at which rank 1 dies. If the place begins with "collective", rank 0
# takes part in a collective (which hangs). Otherwise rank 0 continues when the revoke has come and the state is frozen. In
# attempt 0 each rank has also made the undisturbed training.
SCRIPT = r"""
import contextlib, hashlib, os, signal, socket, sys, time, torch
import torch.distributed as dist
from ddplaunch import elastic

STEPS = int(sys.argv[1])
WITH = os.environ["WITH"].split()
PER_EPOCH = 3

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.randn(8, generator=torch.Generator().manual_seed(index)), torch.tensor([index / 24.0])

def scaler():
    if "scaler" in WITH and hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    return torch.cuda.amp.GradScaler(enabled=False)  # PyTorch 1.13 has none for CPUs

def fill(state):
    torch.manual_seed(1)
    drop = [torch.nn.Dropout(0.3)] if "dropout" in WITH else []
    norm = [torch.nn.BatchNorm1d(6)] if "batchnorm" in WITH else []
    state["model"] = torch.nn.Sequential(torch.nn.Linear(8, 6), *norm, torch.nn.Tanh(), *drop, torch.nn.Linear(6, 1))
    state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.05, momentum=0.9)
    schedulers = torch.optim.lr_scheduler
    state["scheduler"] = schedulers.SequentialLR(state["optimizer"], milestones=[3], schedulers=[
        schedulers.LinearLR(state["optimizer"], 0.2, total_iters=3), schedulers.StepLR(state["optimizer"], 2, 0.5)])
    state["scaler"] = scaler()
    state["seed"] = elastic.StepSeed(7)

def batches(world, step):
    # of this step and those behind it in the epoch
    if "workers" not in WITH:
        while True:
            yield torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + world.rank)), torch.ones(4, 1)
            step += 1
    while True:
        epoch = step // PER_EPOCH
        data = Data()
        sampler = torch.utils.data.distributed.DistributedSampler(data, world.world_size, world.rank, seed=5)
        sampler.set_epoch(epoch)
        loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, generator=torch.Generator())
        for index, batch in enumerate(loader):
            if index >= step % PER_EPOCH:
                yield batch
        step = (epoch + 1) * PER_EPOCH

def run(world, state, fault):
    def at(place, step):
        if fault != f"{place} {step}" or world.attempt:
            return
        store = dist.distributed_c10d._get_default_store()
        if world.rank == 1:
            for other in set(range(world.world_size)) - {1}:  # a rank that is still behind would hold an earlier step
                store.get(f"arrived-{other}")
            os.kill(os.getpid(), signal.SIGKILL)
        store.set(f"arrived-{world.rank}", "")
        if place.startswith("collective"):
            dist.all_reduce(torch.ones(1))
        while not world._progress.frozen:
            time.sleep(0.001)

    if "GPU" in os.environ:
        torch.cuda.synchronize = lambda: at("synchronize", step)
    if not state:
        fill(state)
    model, optimizer, scheduler, scaler = [state[key] for key in ("model", "optimizer", "scheduler", "scaler")]
    registered = list(state.values()) if "MISSING" not in os.environ else [model]
    if world.attempt and "new" in WITH:
        registered[2] = scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    world.sync(*registered)
    print("begin", world.attempt, "from", world.completed, flush=True)
    ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters="unused" in WITH)
    source = batches(world, world.completed)
    parts = 3 if "accumulation" in WITH else 1
    for step in range(world.completed, STEPS):
        x, wanted = next(source)
        optimizer.zero_grad()
        for part in range(parts):
            with ddp.no_sync() if part + 1 < parts else contextlib.nullcontext():
                at(f"part-{part}", step)
                with torch.autocast("cpu", torch.bfloat16, enabled="scaler" in WITH):
                    loss = (ddp(x + part) - wanted).pow(2).mean()
                # The scaler leaves out the third step.
                scaler.scale(loss * (float("inf") if "scaler" in WITH and scaler.is_enabled() and step == 2 else 1)).backward()
        scaler.unscale_(optimizer)
        at("collective-unscaled", step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        at("before-optimizer", step)
        scaler.step(optimizer)
        at("collective-stepped", step)
        scaler.update()
        if "late" not in WITH:
            scheduler.step()
        at("before-world.step", step)
        world.step(step + 1)
        if "late" in WITH:
            scheduler.step()
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)  # each rank has its own of the last forward pass
    tensors = [*model.state_dict().values(), *[v["momentum_buffer"] for v in optimizer.state.values()]]
    held = [t.flatten().tolist() for t in tensors] + [scheduler.state_dict()["last_epoch"], optimizer.param_groups[0]["lr"],
                                                      scaler.state_dict()]
    return hashlib.sha256(repr(held).encode()).hexdigest()[:12]

@elastic.rejoin(backend="gloo")
def train(world, state):
    if world.attempt == 0 and "REFERENCE" in os.environ:
        calm = elastic.World(None, dict(world._order), elastic._Progress(False), "cpu")
        print("undisturbed", run(calm, {}, None), flush=True)
        dist.barrier()
    print("end", run(world, state, os.environ.get("FAULT")), flush=True)

"""
CALL = "train()\n"

# Replaces the body of the document's step.
STEP = """    at("part-0", step)
    scaler.scale(model(torch.randn(4, 8)).pow(2).mean()).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
"""

# A fake GPU whose steps complete or never do, as $GPU says.
FAKE_GPU = """
class Event:
    def record(self):
        pass

    def query(self):
        return os.environ["GPU"] == "complete"

torch.cuda.Event = Event
make_progress = elastic._Progress
elastic._Progress = lambda asynchronous: make_progress(True)
"""

# Opens a connection of another part of the program while the group is made.
CONNECTION = """
listener = socket.create_server(("127.0.0.1", 0))
pairs = []

def meet(*args, make=dist.rendezvous, **named):
    client = socket.create_connection(listener.getsockname())
    pairs.append((client, listener.accept()[0]))
    yield from make(*args, **named)

dist.rendezvous = meet
inner = train.__wrapped__
def look(world, state):
    if world.attempt:
        client, server = pairs[0]
        server.settimeout(10)
        client.sendall(b"alive")
        print(server.recv(5).decode(), flush=True)
        server.sendall(b"alive")
        print(client.recv(5).decode(), flush=True)
    return inner(world, state)
train = elastic.rejoin(look, backend="gloo")
"""
JOINING = """
def meet(*args, make=dist.rendezvous, **named):
    print("joins", flush=True)
    yield from make(*args, **named)

dist.rendezvous = meet
"""
DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 4096))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
"""


@unittest.skipUnless(STORE.exists(), "the tests' store is not built")
class ElasticSteps(ElasticTest):
    steps = 8

    def disturb(self, fault, features="", prelude="", script=SCRIPT, lines=b"", **environment):
        """Starts two ranks, of which rank 1 dies at `fault`. Returns rank 0 and the step that it holds."""
        self.path = self.script("script.py", script + prelude + CALL, mode=0o644)
        self.environment = dict(environment, WITH=features)
        self.before = self.team(self.steps, 2, FAULT=fault, REFERENCE="1", **self.environment)
        self.before[0].link.sendall(lines)
        self.before[1].process.wait(120)
        return self.before[0], self.revoke(0, self.before[:1])[0]

    def go_on(self, survivor, source):
        """Lets a new rank 1 join. Returns rank 0's output and standard error."""
        team = [survivor, self.worker(self.steps, **self.environment)]
        self.begin(1, team, source=source)
        ends = [worker.end() for worker in team]
        for code, _, err in ends:
            self.assertEqual(code, 0, err)
        (_, out, err), (_, other, _) = ends
        self.assertEqual(self.value(other, "end"), self.value(out, "end"), "ranks differ")
        return out, err

    def value(self, out, key):
        return [line.split()[1] for line in out.splitlines() if line.startswith(key + " ")][-1]

    def assert_undisturbed(self, out):
        self.assertEqual(self.value(out, "end"), self.value(out, "undisturbed"), out)

    def assert_recovers(self, fault, features="", step=4, **named):
        survivor, held = self.disturb(fault, features, **named)
        self.assertEqual(held, step)
        out, _ = self.go_on(survivor, 0)
        self.assertIn(f"begin 1 from {step}\n", out)
        self.assert_undisturbed(out)
        return out

    def test_a_loss_in_a_step(self):
        gpu = dict(prelude=FAKE_GPU, GPU="complete")
        for name, fault, features, step, named in (
                ("between unscale and update of a scaler", "collective-unscaled 4", "scaler", 4, {}),
                ("all together", "part-2 5", "scaler workers dropout accumulation batchnorm", 5, {}),
                ("between optimizer and world.step()", "before-world.step 4", "", 5, {}),
                ("before the optimizer", "before-optimizer 4", "", 4, {}),
                ("with a GPU that has completed the step", "part-0 4", "", 4, gpu),
                # The gradients seem complete, but the optimizer must not use them.
                ("with a GPU whose all-reduce was aborted", "before-optimizer 4", "", 4, gpu),
                ("while the optimizer waits for the GPU", "synchronize 4", "", 4, gpu),
                ("with descriptors beyond 1023", "part-0 4", "", 4, dict(prelude=DESCRIPTORS)),
                ("among unknown lines of the agent", "part-0 4", "", 4, dict(
                    lines=b'{"news":1}\n[1]\nnot JSON\n{"attempt":"x"}\n{"attempt":9}\n{"revoke":[]}\n' + b"[" * 4000 + b"\n"))):
            with self.subTest(name):
                self.assert_recovers(fault, features, step, **named)

    def test_a_state_that_is_refused(self):
        """The state of rank 0 is not used. No other rank has a state, so the script starts again from the beginning."""
        for fault, features, why, named in (
                ("collective-stepped 4", "", "the state after step 4 is not used: the attempt ended between optimizer.step() and world.step()", {}),
                ("before-world.step 4", "late", "world.step(), which must be the last call of a step", {}),
                ("before-world.step 0", "late", "the state after step 1 is not used", {}),
                ("collective-stepped 4", "", "world.sync() got no optimizer", dict(MISSING="1")),
                ("part-0 4", "", "the attempt ended before the GPU had completed the step", dict(prelude=FAKE_GPU, GPU="behind"))):
            with self.subTest(why):
                survivor, held = self.disturb(fault, features, **named)
                self.assertIsNone(held)
                out, err = self.go_on(survivor, None)
                self.assertIn("begin 1 from 0\n", out)
                self.assert_undisturbed(out)
                self.assertIn(why, err)

    def test_three_ranks_whose_buckets_stay(self):
        # The sum of two numbers is the same in either order, but that of three is not.
        self.path = self.script("script.py", SCRIPT + CALL, mode=0o644)
        self.environment = {"WITH": "accumulation unused"}
        team = self.team(self.steps, 3, FAULT="part-1 4", REFERENCE="1", **self.environment)
        team[1].process.wait(120)
        self.assertEqual(self.revoke(0, [team[0], team[2]]), [4, 4])
        team[1] = self.worker(self.steps, **self.environment)
        self.begin(1, team, source=0)
        ends = [worker.end() for worker in team]
        for code, out, err in ends:
            self.assertEqual(code, 0, err)
            self.assertEqual(self.value(out, "end"), self.value(ends[0][1], "undisturbed"))

    def test_a_misuse_that_is_detected_after_a_recovery(self):
        # A loss may have hit between world.step() and the scheduler's step, which no check could see at that time.
        for before, after, victim, why in (
                ("", "late", 1, "the last call of a step: the change may be missing in the state that other ranks received"),
                ("new", "new", 0, "world.sync() got a different StepLR object than in the last attempt")):
            with self.subTest(why):
                survivor, held = self.disturb("part-0 4", before)
                self.environment["WITH"] = after
                team = [survivor, self.worker(self.steps, **self.environment)]
                self.begin(1, team, source=0)
                code, _, err = team[victim].end()
                self.assertEqual((held, code), (4, 1))
                self.assertIn(why, err)

    def test_a_revoke_before_a_gpu_step_is_counted(self):
        """A state that changes after the freeze may result from an aborted collective."""
        _, held = self.disturb("before-world.step 4", prelude=FAKE_GPU, GPU="complete")
        self.assertIsNone(held)

    def test_the_training_step_of_the_documentation(self):
        lines = re.findall(r"```python\n(.*?)```", (SOURCE / "docs/users/elastic_python.md").read_text(), re.S)[1]
        lines = re.sub(r"    \.\.\. .*\n", STEP, lines)
        self.assertIn("part-0", lines)
        head, rest = SCRIPT.split("    world.sync(*registered)\n")
        script = head + textwrap.indent(lines, "    ") + rest[rest.index("    for buffer in model"):]
        survivor, held = self.disturb("part-0 4", script=script)
        self.assertEqual(held, 4)
        self.assert_undisturbed(self.go_on(survivor, 0)[0])

    def test_connections_of_others_are_not_touched(self):
        self.assertEqual(self.assert_recovers("part-0 4", prelude=CONNECTION).count("alive\n"), 2)

    def test_a_stop_while_a_rank_is_missing(self):
        """The rank that starts may have ended by the stop, and the others would wait for it until they are killed."""
        self.path = self.script("script.py", SCRIPT + JOINING + CALL, mode=0o644)
        worker = self.worker(self.steps, WITH="")
        self.begin(0, [worker], missing=1)
        self.read_line(worker, "joins\n")
        worker.say(stop="SIGTERM", grace_ms=25000)
        self.assertEqual(worker.end()[0], 143)


class Bad:
    """An object that cannot be loaded."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise KeyError("x")


class Scaler:
    """The part of a GradScaler that the module uses."""

    def __init__(self):
        self._per_optimizer_states, self._scale = {}, None

    def state_dict(self):
        return {}


class Seen:
    """A counter of batches."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class ElasticUnits(unittest.TestCase):
    """Tests of single classes in this process, without collectives."""

    def setUp(self):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.progress = elastic._Progress(False)

    def world(self, rank=0, source=None, progress=None, link=None):
        order = dict(attempt=1, rank=rank, world=2, local_rank=rank, local_world=2, node_rank=0, nodes=1)
        return elastic.World(link, dict(order, **{"from": source}), progress or self.progress, "cpu")

    def test_each_step_is_measured_also_if_it_is_not_reported(self):
        link = types.SimpleNamespace(changed=contextlib.nullcontext(), report=None, revoked=lambda: None, stopping=None, send=lambda word: None)
        world = self.world(link=link)
        for completed, now in ((5, 10), (6, 10.2), (6, 10.3), (8, 10.6), (9, 410.6)):
            with unittest.mock.patch.object(elastic.time, "monotonic", lambda now=now: now):
                world.waited += 0.25
                world.step(completed)
        self.assertEqual(link.report["waited"], 1.0)  # the first report began the first step
        self.assertEqual(link.report["durations"], [(58, 3), (141, 1)])
        self.assertAlmostEqual(link.report["seconds"], 400.6)
        link.report = None  # it was sent, so the next one has later steps only
        with unittest.mock.patch.object(elastic.time, "monotonic", lambda: 410.8):
            world.step(10)
        self.assertNotIn("waited", link.report)
        self.assertEqual(len(link.report["durations"]), 1)
        self.assertAlmostEqual(link.report["seconds"], 0.2)

    def test_a_fork_waits_for_the_threads_that_run(self):
        """A thread that enters Python while another one forks hangs the child (python/cpython#112275)."""
        registered, total = [], []
        with unittest.mock.patch.object(os, "register_at_fork", lambda before: registered.append(before)), \
                unittest.mock.patch.object(sys, "version_info", (3, 11, 2)), unittest.mock.patch.dict(os.environ, DDPLAUNCH_CONTROL="none"):
            with self.assertRaises(elastic.LinkLost):
                elastic.rejoin(lambda world, state: None, backend="gloo")()
        compute = threading.Thread(target=lambda: (hashlib.pbkdf2_hmac("sha256", b"", b"", 3000000), total.append(time.thread_time())))
        compute.start()

        def computed():  # seconds of CPU time
            try:
                with open(f"/proc/self/task/{compute.native_id}/stat") as file:
                    return int(file.read().rpartition(") ")[2].split()[11]) / os.sysconf("SC_CLK_TCK")
            except OSError:  # it has ended
                return total[0]
        self.assertTrue(wait_until(lambda: computed() >= 0.05))  # before that it may wait for this thread, and so sleep
        with unittest.mock.patch.object(elastic, "FORK_WAIT_S", 60):
            registered[0]()
        at_fork = computed()
        compute.join()
        self.assertGreater(at_fork, 0.9 * total[0])

    def test_a_group_that_completes_while_its_sockets_are_searched(self):
        sockets = elastic.Sockets()
        sockets.before = {"3"}

        def loops():  # the main thread leaves opening()
            sockets.before = None
            return {"3": {1}, "4": {2}}
        with unittest.mock.patch.object(sockets, "_loops", loops):
            self.assertEqual(sockets._of_new_loops(), {2})

    def test_no_write_fails_until_all_ranks_have_left_the_attempt(self):
        listener = socket.create_server(("127.0.0.1", 0))
        own = socket.create_connection(listener.getsockname())
        peer = listener.accept()[0]
        with listener, peer:
            sockets = elastic.Sockets()
            sockets.own[os.fstat(own.fileno()).st_ino] = None
            for _ in range(3):  # until the main thread is back
                sockets.shut()
            self.assertEqual(own.recv(1), b"", "the thread that reads is woken")
            own.sendall(b"here")
            own.close()  # by Gloo, with the peer's next bytes unread
            for _ in range(3):
                peer.sendall(b"there")
            self.assertEqual(peer.recv(9), b"here")
            sockets.release()
            with self.assertRaises(ConnectionError):
                while True:  # the reset arrives at once, on the loopback interface
                    peer.recv(9) or peer.sendall(b"there")

    def sync(self, *holders, **named):
        """Runs world.sync() of rank 0. Returns the world and the tensors that it sends."""
        sent, world = [], self.world(**named)
        with unittest.mock.patch("torch.distributed.broadcast", lambda data, root: sent.append(data.clone())):
            world.sync(*holders)
        return world, sent

    def receive(self, sent, *holders, progress):
        with unittest.mock.patch("torch.distributed.broadcast", lambda data, root: data.copy_(sent.pop(0))):
            self.world(1, 0, progress).sync(*holders)

    def backward(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 2)).pow(2).sum().backward()

    def make_step(self):
        self.backward()
        self.optimizer.step()

    def after_a_step(self):
        """Returns a world in which a step is complete."""
        world = self.sync(self.model, self.optimizer)[0]
        self.make_step()
        world.step(1)
        return world

    def update_by_hand(self):
        with torch.no_grad():
            for p in self.model.parameters():
                p -= 0.1 * p.grad

    def assert_refused(self, why):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.assertIsNone(self.progress.settle())
        self.assertIn(why, self.err.getvalue() + err.getvalue())

    def run(self, result=None):
        self.err = io.StringIO()
        with contextlib.redirect_stderr(self.err):
            return super().run(result)

    def test_no_optimizer_is_registered(self):
        for holders in ([], [self.model]):
            for update in (self.optimizer.step, self.update_by_hand):
                self.progress = elastic._Progress(False)
                world = self.sync(*holders)[0]
                self.backward()
                update()
                world.step(1)
                self.backward()
                update()
                self.assert_refused("world.sync() got no optimizer")

    def test_a_partly_registered_model_updated_by_hand_is_refused(self):
        self.optimizer = torch.optim.SGD(self.model[0].parameters(), lr=0.1)
        self.after_a_step()
        self.backward()
        self.update_by_hand()
        self.assert_refused("in a step that had changed weights")

    def test_world_step_before_the_optimizer(self):
        """In the first step, and for a part of an accumulation."""
        for complete in (0, 1):
            self.progress = elastic._Progress(False)
            world = self.after_a_step() if complete else self.sync(self.model, self.optimizer)[0]
            self.backward()
            world.step(complete + 1)
            self.assert_refused(f"world.step({complete + 1}) was called for a step in which no registered optimizer has stepped")

    def test_valid_steps_without_the_optimizer(self):
        """A scaler skips the first step; a scheduler steps after a validation."""
        scaler, scheduler = Scaler(), torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.world().step(5)  # from a checkpoint
        world = self.sync(self.model, self.optimizer, scheduler, scaler)[0]
        scaler._scale = torch.ones(1).mul_(0.5)
        world.step(6)
        self.make_step()
        world.step(7)
        scheduler.step()
        world.step(8)
        self.assertEqual(self.progress.settle(), 8, self.err.getvalue())

    def test_batches_without_a_step_belong_to_the_next_step(self):
        """A scaler makes its scale in the first batch, and another object changes in each."""
        scaler, seen = Scaler(), Seen()
        world = self.sync(self.model, self.optimizer, scaler, seen)[0]
        for _ in world.epochs(1):
            for number in world.batches(range(6)):
                seen.count += 1
                self.assertEqual((world.completed, self.progress.position.used), ((0, 0), (1, 4), (2, 8))[number // 2])
                scaler._scale = torch.ones(1) if scaler._scale is None else scaler._scale
                if number == 3:
                    scaler._scale.mul_(0.5)  # it skips the step
                elif number % 2:
                    self.make_step()
        self.assertEqual((self.progress.settle(), self.err.getvalue()), (3, ""))

    def test_a_batch_that_ends_with_a_break_behind_the_optimizer(self):
        world = self.sync(self.model, self.optimizer)[0]
        for _ in world.epochs(2):
            for _ in world.batches([1, 2]):
                self.make_step()
                break
        self.assertEqual((self.progress.settle(), self.progress.position.epoch), (2, 2))

    def test_a_loss_in_the_first_step(self):
        """No state is handed on, but the process goes on with its own."""
        self.sync(self.model, self.optimizer)
        self.model.eval()
        self.model[1].running_mean += 1
        self.assertIsNone(self.progress.settle())
        self.assertEqual((self.model.training, self.model[1].running_mean.tolist(), self.progress.is_used), (True, [0, 0], False))

    def test_a_loss_in_the_first_step_after_a_scheduler(self):
        self.progress = elastic._Progress(False)
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.sync(self.model, self.optimizer, scheduler)
        scheduler.step()
        self.assertEqual((self.progress.settle(), self.progress.is_used), (None, True))

    def test_a_loss_while_a_step_has_other_weights(self):
        """Averaged weights while a validation runs, or rounded ones of a forward pass."""
        for steps in (1, 0):
            self.progress = elastic._Progress(False)
            self.world().step(4)
            world = self.sync(self.model, self.optimizer)[0]
            with torch.no_grad():
                self.model[0].weight.copy_(self.model[0].weight.clone())  # as DistributedDataParallel
            if steps:
                self.make_step()
                world.step(5)
            self.assertEqual(self.progress.settle(), 4 + steps)
            with torch.no_grad():
                self.model[0].weight.mul_(1.5)
            self.assert_refused("in a step that had changed weights")

    def test_an_optimizer_whose_step_never_runs(self):
        world = self.sync(self.model, self.optimizer)[0]
        with self.assertRaisesRegex(elastic.ScriptError, r"an epoch in which step\(\) of no registered optimizer has run"):
            for _ in world.epochs(1):
                for _ in world.batches([1, 2]):
                    self.backward()
                    self.update_by_hand()

    def test_a_learning_rate_that_is_changed_at_the_beginning_of_an_epoch(self):
        for used, decay, fails in ((0, 0.1, False), (1, 1.0, False), (1, 0.1, True)):
            self.progress = elastic._Progress(False)
            self.progress.position.load_state_dict({"used": 2 * used, "ranks": 2})
            world = self.sync(self.model, self.optimizer)[0]
            wanted = self.assertRaisesRegex(elastic.ScriptError, "changed a learning rate") if fails else contextlib.nullcontext()
            with wanted:
                for _ in world.epochs(1):
                    self.optimizer.param_groups[0]["lr"] *= decay
                    for _ in world.batches(torch.utils.data.DataLoader(range(4))):
                        self.make_step()

    def test_a_learning_rate_that_is_set_at_the_beginning_of_an_epoch_and_in_each_batch(self):
        kept = None
        for _ in range(2):  # the second time the epoch is resumed in its middle
            self.progress = elastic._Progress(False)
            self.progress.position.load_state_dict(kept or {})
            world = self.sync(self.model, self.optimizer)[0]
            for _ in world.epochs(1):
                self.optimizer.param_groups[0]["lr"] = 0.1
                for _ in world.batches(torch.utils.data.DataLoader(range(4))):
                    self.optimizer.param_groups[0]["lr"] = 0.01
                    self.make_step()
                    kept = self.progress.position.state_dict() if self.progress.position.used else kept

    def test_a_loss_is_read_before_the_lock_is_taken(self):
        """It may wait for a collective that only the thread that needs this lock aborts."""
        lock = threading.Lock()
        loss = types.SimpleNamespace(detach=lambda: self.assertFalse(lock.locked()) or 0.5)
        link = types.SimpleNamespace(revoked=lambda: None, changed=lock, report=None, send=lambda word: None)
        world = self.sync(self.model, self.optimizer, link=link)[0]
        self.make_step()
        world.step(1, loss=loss)
        self.assertEqual(link.report["loss"], 0.5)

    def test_an_embedding_that_renorms_its_rows_in_each_forward_pass(self):
        table = torch.nn.Embedding(4, 2, max_norm=1.0)
        world = self.sync(self.model, table, self.optimizer)[0]
        self.make_step()
        world.step(1)
        table(torch.tensor([1]))
        self.assertEqual(self.progress.settle(), 1)

    def test_a_script_that_catches_the_errors_of_collectives(self):
        link = types.SimpleNamespace(revoked=lambda: why[0], await_revoke=lambda seconds: why.__setitem__(0, "rank 1 was lost") or True,
                                     changed=contextlib.nullcontext(), report=None, send=lambda word: None)
        for is_broken in (False, True):
            why, self.progress = [None], elastic._Progress(False)
            world = self.sync(self.model, self.optimizer, link=link)[0]
            world._is_broken = lambda: is_broken
            with self.assertRaises(elastic.Revoked) if is_broken else contextlib.nullcontext():
                for _ in world.epochs(1):
                    for number in world.batches(range(4)):
                        if number < 2:
                            self.make_step()
            self.assertEqual((world.completed, self.progress.position.epoch), (2, 0 if is_broken else 1))

    def test_an_object_that_was_forgotten_is_noticed_after_a_recovery(self):
        store = torch.distributed.HashStore()
        for rate, rounding, fails in ((0.1, 1e-8, False), (0.05, 0, True), (0.1, 1e-3, True)):
            worlds = []
            for rank in (0, 1):  # rank 0 is the source
                self.setUp()
                worlds.append(self.sync(self.model, self.optimizer, rank=rank, source=0)[0] if rank == 0 else self.world(1, 0))
                self.progress.registered, worlds[-1]._is_synced, worlds[-1]._store = [self.model, self.optimizer], True, store
            self.optimizer.param_groups[0]["lr"] = rate
            with torch.no_grad():
                self.model[0].weight.mul_(1 + rounding)
            with self.assertRaisesRegex(elastic.ScriptError, "other weights or learning rates than rank 0") if fails else contextlib.nullcontext():
                for step in range(1, 5):
                    for world in worlds:
                        world._progress.stepped = True
                        world.step(step)
            store = torch.distributed.HashStore()

    def test_world_step_with_the_number_of_the_step(self):
        for first in (0, 3):
            self.progress = elastic._Progress(False)
            if first:
                self.world().step(first)
            world = self.sync(self.model, self.optimizer)[0]
            self.make_step()
            world.step(first)
            self.assert_refused(f"world.step({first}) follows an optimizer's step, but {first} steps were complete before it")

    def test_averaged_weights_after_world_step(self):
        average = torch.optim.swa_utils.AveragedModel(self.model)
        world = self.sync(self.model, self.optimizer, average)[0]
        for p in self.model.parameters():
            p.detach().copy_(p.detach().clone())  # DistributedDataParallel does this
        self.make_step()
        average.update_parameters(self.model)
        world.step(1)
        self.make_step()
        world.step(2)
        self.assertEqual(self.progress.settle(), 2)
        average.update_parameters(self.model)
        self.make_step()
        self.assertIn("changed after world.step()", self.err.getvalue())
        world.step(3)
        self.assert_refused("changed after world.step()")

    def test_frozen_weights_that_are_written_by_the_wrapper(self):
        self.optimizer = torch.optim.SGD(self.model[0].parameters(), lr=0.1)
        world = self.sync(self.model, self.optimizer)[0]
        for p in self.model[1].parameters():
            p.requires_grad_(False).copy_(p.clone())
        self.make_step()
        world.step(1)
        self.assertEqual(self.progress.settle(), 1)

    def test_what_an_interrupted_step_has_changed(self):
        """Statistics of a forward pass; a validation, after which Dropout and BatchNorm would compute something else on this rank alone; and a
        layer that a GAN freezes while it trains the other model, which DistributedDataParallel leaves out of its sums."""
        self.after_a_step()
        before = [buffer.clone() for buffer in self.model.buffers()]
        self.model(torch.randn(4, 2))
        self.model[1].num_batches_tracked = self.model[1].num_batches_tracked + 1  # replaces the tensor by another one
        self.model.eval()
        self.model[0].weight.requires_grad_(False)
        self.assertEqual(self.progress.settle(), 1)
        for old, new in zip(before, self.model.buffers()):
            self.assertTrue(torch.equal(old, new), (old, new))
        self.assertEqual([part.training for part in self.model.modules()], [True] * 3)
        self.assertTrue(all(p.requires_grad for p in self.model.parameters()))

    def test_a_buffer_that_cannot_be_written_is_kept(self):
        model = torch.nn.Linear(2, 2)
        model.register_buffer("ones", torch.ones(1).expand(4), persistent=False)
        elastic._load_beside_state(model, [True], [True] * 2, {"ones": torch.ones(4)})
        self.assertEqual(model.ones.tolist(), [1.0] * 4)

    def test_what_a_state_dict_leaves_out(self):
        """A step has frozen a layer for good, and has written a buffer that is not persistent."""
        def make():
            model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
            model[0].register_buffer("seen", torch.zeros(2), persistent=False)
            return model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.optimizer = make()
        self.model[0].weight.requires_grad_(False)
        self.model[1].eval()
        self.model[0].seen += 3
        self.world().step(4)
        other = make()
        self.receive(self.sync(self.model, self.optimizer, source=0)[1], *other, progress=elastic._Progress(False))
        self.assertEqual([p.requires_grad for p in other[0].parameters()], [False, True, True, True])
        self.assertEqual([part.training for part in other[0].modules()], [True, True, False])
        self.assertEqual(other[0][0].seen.tolist(), [3, 3])

    def test_an_optimizer_that_gets_other_parameters(self):
        """The optimizer of a new process has not got them, and so could not load the state in any attempt."""
        self.optimizer = torch.optim.SGD(self.model[0].parameters(), lr=0.1)
        world = self.after_a_step()
        self.assertEqual(self.progress.settle(), 1)
        self.optimizer.add_param_group({"params": list(self.model[1].parameters())})
        self.make_step()
        world.step(2)
        self.assert_refused("an optimizer has got other parameters since world.sync()")

    def test_an_exception_while_the_state_is_loaded(self):
        self.world().step(4)
        progress = elastic._Progress(False)
        holders = [self.model, self.optimizer, Bad()]
        with self.assertRaises(KeyError):
            self.receive(self.sync(*holders, source=0)[1], *holders, progress=progress)
        self.assertEqual((progress.completed, progress.settle(), progress.is_used), (None, None, True))

    def test_a_module_that_was_forgotten(self):
        head = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD([*self.model.parameters(), *head.parameters()], lr=0.1)
        with self.assertRaisesRegex(elastic.ScriptError, r"got a SGD with a parameter of shape \[1, 2\] that no registered module has"):
            self.sync(self.model, optimizer)
        weights = types.SimpleNamespace(state_dict=lambda: {"head": [p.detach() for p in head.parameters()]}, load_state_dict=dict)
        self.sync(self.model, optimizer, weights)

    def test_sync_twice_in_an_attempt(self):
        world = self.sync(self.model, self.optimizer)[0]
        with self.assertRaisesRegex(elastic.ScriptError, r"world\.sync\(\) was called twice in an attempt"):
            world.sync(self.optimizer)

    def test_optimizer_state_of_another_type_than_its_parameter(self):
        """Master copies in float32, of which load_state_dict() keeps the bits of the parameter."""
        def make():
            model = torch.nn.Linear(2, 1).bfloat16()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.state[model.weight] = {"master": torch.rand(1, 2), "parts": [torch.rand(2)], "step": torch.tensor(3.0)}
            return model, optimizer
        ours, theirs = make(), make()
        self.world().step(4)
        self.receive(self.sync(*ours, source=0)[1], *theirs, progress=elastic._Progress(False))
        mine, other = ours[1].state[ours[0].weight], theirs[1].state[theirs[0].weight]
        for old, new in zip((mine["master"], *mine["parts"], mine["step"]), (other["master"], *other["parts"], other["step"])):
            self.assertEqual((new.dtype, new.tolist()), (old.dtype, old.tolist()))

    def test_settings_with_which_no_group_is_connected_again(self):
        found = unittest.mock.patch.object(_torch, "find", lambda owner, name: types.SimpleNamespace(pg_map={}))
        for name, value, wanted in (("TORCH_DISTRIBUTED_DEBUG", "DETAIL", False), ("TORCH_DISTRIBUTED_DEBUG", "INFO", True),
                                    ("TORCH_GLOO_LAZY_INIT", "1", False), ("TORCH_DIST_INIT_BARRIER", "1", False)):
            with found, unittest.mock.patch.dict(os.environ, {name: value}):
                self.assertEqual(_torch.can_connect_again(), wanted, name)

    def test_a_second_call_by_hand(self):
        with unittest.mock.patch.dict(os.environ), unittest.mock.patch.object(elastic._Rejoin, "alone", False):
            for name in ("RANK", "MASTER_ADDR", "DDPLAUNCH_CONTROL"):
                os.environ.pop(name, None)
            train = elastic.rejoin(lambda world, state: world.world_size, backend="gloo")
            self.assertEqual((train(), train()), (1, 1))

    def test_ranks_that_register_other_objects(self):
        self.world().step(4)
        sent = self.sync(self.model, self.optimizer, source=0)[1]
        with self.assertRaisesRegex(TypeError, r"got \['Sequential'\] on rank 1 and \['Sequential', 'SGD'\] on rank 0"):
            self.receive(sent, self.model, progress=elastic._Progress(False))

    def test_an_attempt_without_sync(self):
        link = types.SimpleNamespace(revoked=lambda: None, report=None, send=lambda word: None, changed=threading.Condition())
        self.world(link=link).step(4)
        with self.assertRaisesRegex(RuntimeError, r"world.sync\(\) was not called in attempt 1"):
            self.world(source=1, link=link).step(5)

    def batches(self, rank, ranks, position, steps):
        """Trains an epoch of batches of two items. Returns the items of the first `steps` steps."""
        progress = elastic._Progress(False)
        progress.position.load_state_dict(position)
        order = dict(attempt=1, rank=rank, world=ranks, local_rank=rank, local_world=ranks, node_rank=0, nodes=1)
        world = elastic.World(None, order, progress, "cpu")
        sampler = torch.utils.data.distributed.DistributedSampler(range(24), ranks, rank, seed=3)
        items = []
        for _ in world.epochs(1):
            for batch in world.batches(torch.utils.data.DataLoader(range(24), batch_size=2, sampler=sampler)):
                if len(items) == 2 * steps:
                    return items, progress.position.state_dict()
                items += batch.tolist()
                progress.stepped = True
        return items, progress.position.state_dict()

    def test_the_data_position_with_another_number_of_ranks(self):
        begin = Position().state_dict()
        for ranks, fewer, steps, repeated in ((4, 2, 2, 0), (3, 2, 1, 2), (2, 3, 2, 2), (3, 3, 2, 0)):
            before = [self.batches(rank, ranks, begin, steps) for rank in range(ranks)]
            after = [self.batches(rank, fewer, before[0][1], 24) for rank in range(fewer)]
            seen = [item for items, _ in before + after for item in items]
            self.assertEqual((set(seen), len(seen)), (set(range(24)), 24 + repeated), (ranks, fewer))
            self.assertEqual([position["epoch"] for _, position in after], [1] * fewer)

    def test_loaders_with_generators_of_their_own(self):
        """A process that has made the epochs before draws the same order as a new one, whoever has seeded the generator."""
        data = torch.utils.data

        def epochs(first, count, make, generator=None):
            progress, orders = elastic._Progress(False), []
            progress.position.epoch = first
            world, generator = self.world(progress=progress), generator or torch.Generator().manual_seed(5)
            for epoch in world.epochs(first + count):
                if make is by_script:
                    generator.manual_seed(epoch)
                orders.append([])
                for batch in world.batches(make(generator)):
                    orders[-1] += batch.tolist()
                    progress.stepped = True
            return orders

        def by_script(generator):
            return data.DataLoader(range(24), batch_size=4, shuffle=True, generator=generator)
        for make in (lambda generator: data.DataLoader(range(24), batch_size=4, shuffle=True, generator=generator), by_script,
                     lambda generator: data.DataLoader(range(24), batch_sampler=data.BatchSampler(data.RandomSampler(
                         range(24), generator=generator), 4, False))):
            generator = torch.Generator().manual_seed(5)
            calm = epochs(0, 4, make, generator)
            self.assertEqual(len({tuple(order) for order in calm}), 4)
            self.assertEqual(epochs(2, 2, make), calm[2:], "a new process")
            self.assertEqual(epochs(3, 1, make, generator), calm[3:], "a process that made the epoch before")

    def test_orders_that_are_drawn_from_global_generators(self):
        """An epoch that is resumed in its middle has the same order, whoever draws it and in whatever process."""
        data = torch.utils.data

        class Shuffled(data.Sampler):
            def __init__(self):
                pass

            def __iter__(self):
                order = list(range(8))
                random.shuffle(order)
                return iter(order)

            def __len__(self):
                return 8

        def epochs(first, used, make):
            progress, orders = elastic._Progress(False), []
            progress.position.load_state_dict({"epoch": first, "used": used, "ranks": 1, "seed": 5})
            world = self.sync(self.model, self.optimizer, elastic.StepSeed(3), progress=progress)[0]
            world.world_size, progress.completed = 1, 2 * first + used
            for epoch in world.epochs(3):
                loader = make()
                orders.append([])
                for batch in world.batches(loader):
                    orders[-1] += batch.tolist()
                    progress.stepped = True
            return orders
        kept = data.DataLoader(range(8), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
        new = iter([data.DataLoader(range(8), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True) for _ in range(3)])
        for make, again in ((lambda: data.DataLoader(range(8), batch_size=4, sampler=Shuffled()),) * 2,
                            (lambda: data.DataLoader(range(8), batch_size=4, sampler=torch.randperm(8).tolist()),) * 2,
                            (lambda: kept, lambda: next(new))):
            calm = epochs(0, 0, make)
            self.assertEqual(len({tuple(order) for order in calm}), 3, calm)
            self.assertEqual(epochs(2, 1, again), [calm[2][4:]])

    def test_the_number_of_a_batch_after_a_loss(self):
        """A script needs it to step at the last batch of an epoch."""
        self.progress.position.load_state_dict({"used": 4, "ranks": 2})
        world, seen = self.world(), []
        for _ in world.epochs(1):
            seen += [(world.batch, batch.tolist()) for batch in world.batches(torch.utils.data.DataLoader(range(8), batch_size=2))]
        self.assertEqual(seen, [(2, [4, 5]), (3, [6, 7])])

    def test_batches_twice_in_an_epoch(self):
        world = self.world()
        loader = torch.utils.data.DataLoader(range(4))
        for _ in world.epochs(2):
            list(world.batches(loader))
        with self.assertRaisesRegex(TypeError, r"world\.batches\(\) was called twice in an epoch"):
            for _ in self.world(progress=elastic._Progress(False)).epochs(1):
                list(world.batches(loader))
                list(world.batches(loader))

    def test_a_stateful_loader_whose_state_is_on_one_rank(self):
        dataset = type("Endless", (torch.utils.data.IterableDataset,), {"__iter__": lambda self: iter(range(9))})()
        loader = types.SimpleNamespace(state_dict=dict, load_state_dict=dict, dataset=dataset)
        with self.assertRaisesRegex(TypeError, "got a SimpleNamespace of an IterableDataset, whose state differs between ranks"):
            list(self.world().batches(loader))

    def test_a_run_that_begins_from_a_checkpoint(self):
        calls = []
        with unittest.mock.patch.object(elastic, "rejoin", lambda function, **named: function):
            train = elastic.run(self.model, self.optimizer, epoch=2, completed=8)(
                lambda world: calls.append((next(iter(world.epochs(5))), world.completed)))
        with unittest.mock.patch("torch.distributed.broadcast", lambda data, root: None):
            train(self.world(), {})
        self.progress.position.epoch, self.progress.completed = 3, 12
        with unittest.mock.patch("torch.distributed.broadcast", lambda data, root: None):
            train(self.world(source=0), {"begun": True})
        self.assertEqual(calls, [(2, 8), (3, 12)])

    def test_a_state_that_cannot_be_pickled(self):
        bad = types.SimpleNamespace(state_dict=lambda: {"x": lambda: None}, load_state_dict=dict)
        with self.assertRaisesRegex(elastic.ScriptError, "cannot pickle the state of one of .*'SimpleNamespace'"):
            self.sync(self.model, self.optimizer, bad)

    def test_a_loss_of_several_elements(self):
        """A report never ends a training."""
        link = types.SimpleNamespace(changed=contextlib.nullcontext(), report=None, revoked=lambda: None, send=lambda word: None)
        self.world(link=link).step(1, loss=torch.ones(3))
        self.assertNotIn("loss", link.report)
        with unittest.mock.patch.dict(os.environ, DDPLAUNCH_METRICS="/dev/null/none"):
            for values in ({"step": float("inf")}, {"step": 10 ** 400}, {"step": 1, "waited": None}, {"step": 1, "loss": torch.ones(3)}):
                ddplaunch.report(**values)
        self.assertEqual(self.err.getvalue().count("\n"), 1, self.err.getvalue())

    def test_wrong_objects_of_run(self):
        with self.assertRaisesRegex(TypeError, r"elastic\.run\(\) got no optimizer"):
            elastic.run(self.model)
        ddp = torch.nn.parallel.DistributedDataParallel
        with self.assertRaisesRegex(TypeError, "got a DistributedDataParallel, which belongs to one attempt"):
            elastic.run(ddp.__new__(ddp), self.optimizer)
        self.model.compiled = ddp.__new__(ddp)
        torch.nn.Module.__init__(self.model.compiled)
        with self.assertRaisesRegex(TypeError, "got a DistributedDataParallel in a Sequential, which belongs to one attempt"):
            elastic.run(self.model, self.optimizer)

    def test_one_limit_for_all_that_is_searched(self):
        drawn = []

        class Counted(list):
            def __iter__(self):
                return (drawn.append(1) or item for item in super(Counted, self).__iter__())
        self.assertIsNone(elastic._split_part([Counted([0] * elastic.ITEMS_SEARCHED) for _ in range(3)]))
        self.assertLess(len(drawn), elastic.ITEMS_SEARCHED)

    def test_a_rank_that_the_agent_stops_reports_no_script_error(self):
        for stopping, count in ((None, 1), ("failure", 0)):
            sent = []
            link = types.SimpleNamespace(stopping=stopping, attempt=3, send=sent.append)
            with unittest.mock.patch.object(elastic._Link, "opened", link), unittest.mock.patch.dict(os.environ, DDPLAUNCH_CONTROL="unix:x"):
                elastic.ScriptError("bad")
                elastic._report_script_error()
            self.assertEqual(len(sent), count)

    def test_a_process_that_ends_starts_no_thread(self):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("")  # a free abstract name
            listener.listen()
            name = listener.getsockname().decode()
            with unittest.mock.patch.object(elastic._Link, "opened", None), unittest.mock.patch("threading.Thread.start") as start:
                elastic._Link(f"unix:{name}", rejoin=False)
            start.assert_not_called()

    def test_gradients_of_an_incomplete_step(self):
        self.backward()
        self.sync(self.model, self.optimizer)
        self.assertEqual({p.grad for p in self.model.parameters()}, {None})

    def test_what_follows_the_last_step_of_an_epoch(self):
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        world = self.sync(self.model, self.optimizer, scheduler)[0]
        for _ in world.epochs(2):
            for _ in world.batches([1, 2]):
                self.make_step()
            scheduler.step()
        self.assertEqual((self.progress.settle(), self.progress.position.epoch, self.err.getvalue()), (4, 2, ""))

    def test_nccl_is_aborted_before_the_rank_says_that_it_has_left(self):
        """A late abort would hit the communicators of the next attempt."""
        self.world()
        go, ended = threading.Event(), []
        abort = elastic._Abort(types.SimpleNamespace(shut=lambda: None), self.progress, False)
        with unittest.mock.patch.object(elastic, "abort_groups", lambda: (go.wait(10), ended.append(True))):
            threading.Timer(0.05, go.set).start()
            abort.join_nccl()
        self.assertEqual(ended, [True])

    def test_a_broadcast_that_was_aborted(self):
        link = types.SimpleNamespace(revoked=lambda: "rank 1 was lost")
        with self.assertRaisesRegex(elastic.Revoked, "rank 1 was lost"):
            self.world(link=link)._received(torch.ones(1))

    def test_the_state_is_frozen_before_communicators_are_aborted(self):
        """An aborted collective lets the GPU complete the step, but with garbage."""
        order, aborted = [], threading.Event()
        self.world()
        self.progress.event = types.SimpleNamespace(query=lambda: order.append("query") or aborted.is_set())
        abort = elastic._Abort(types.SimpleNamespace(shut=lambda: aborted.wait(10) and abort.back.set()), self.progress, False)
        with unittest.mock.patch.object(elastic, "abort_groups", lambda: (order.append("abort"), aborted.set())):
            abort()
        abort.end()
        self.progress.freeze()
        self.assertEqual((order, self.progress.is_whole), (["query", "abort"], False))

    def test_a_report_that_is_set_while_the_last_is_taken(self):
        """Simulates a reader that is slow between reading the old report and deleting it."""
        sent, done = [], threading.Event()
        link = elastic._Link.__new__(elastic._Link)
        link.changed, link.revokes, link.attempt = threading.Condition(), {}, 1
        link.socket, other = socket.socketpair()
        world = self.world(link=link)
        world._is_ready = True
        setter = threading.Thread(target=world.step, args=[2])

        class Slow(elastic._Link):
            @property
            def report(self):
                last = self.kept
                if not setter.ident:
                    setter.start()
                    setter.join(0.2)  # without a lock the next report would be set here
                return last

            @report.setter
            def report(self, report):
                self.kept = report

        def send(word):
            sent.append(word["step"])
            if word["step"] == 2:
                done.set()
        link.__class__, link.send = Slow, send
        link.report = {"step": 1}
        link.lost = None
        reader = threading.Thread(target=link._run, daemon=True)
        reader.start()
        self.assertTrue(done.wait(60), sent)
        other.close()
        reader.join()
        link.socket.close()


if __name__ == "__main__":
    enter_pytorch()
    import ddplaunch
    import torch.distributed
    import torch.utils.data
    from ddplaunch import _torch, elastic
    from ddplaunch._data import Position
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()  # imports the rest of PyTorch here, and not in each fork
    print("PyTorch", torch.__version__, flush=True)
    main()

#!/usr/bin/env python3
"""Tests docs/users/elastic_python.md under ddplaunch: its example, whose workers are killed, its changed script, and trainings of elastic.run
that end bit-equal to undisturbed ones. Tests the callbacks of docs/users/metrics.md, and the table of PyTorch's private
names in apps/elastic/ddplaunch/_torch.py.

The tests run with the distribution's torch (/usr/bin/python3), and with the interpreter that DDP_TEST_TORCH_PYTHON names."""

import ast
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch
from tests.support.elastic_worker import LIMIT_S, MODULES
from tests.support.launch import SOURCE, LaunchTest, Nodes, main
from tests.support.ports import free_port
from tests.support.rejoin import workers_of

PYTHONS = pytorch.joining_interpreters()
PAGE = (SOURCE / "docs/users/elastic_python.md").read_text()
EXAMPLE = re.search(r"```python\n(import.*?)```", PAGE, re.S).group(1)
CHANGE = re.search(r"```diff\n(.*?)```", PAGE, re.S).group(1).splitlines()
MODULE = SOURCE / "apps/elastic/ddplaunch"

# Data with random transformations, dropout, a scheduler per epoch behind a validation with a collective.
TRAINING = """
import hashlib, random, sys, time, torch
from ddplaunch import elastic
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KIND, PAUSE = sys.argv[1], float(sys.argv[2])

class Data(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x + 0.1 * torch.randn(8) + 0.01 * random.random(), torch.tensor([index / 48])

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)

@elastic.run(model, optimizer, scheduler)
def train(world):
    ddp = DistributedDataParallel(model)
    sampler = DistributedSampler(Data())
    if KIND == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader
        loader = StatefulDataLoader(Data(), batch_size=4, sampler=sampler)
    else:
        loader = DataLoader(Data(), batch_size=4, sampler=sampler, num_workers=2 if KIND == "workers" else 0)
    if world.rank == 0:
        print(f"attempt {world.attempt} from {world.completed}", flush=True)
    for epoch in world.epochs(10):
        for number, (x, wanted) in enumerate(world.batches(loader)):
            loss = ((ddp(x) - wanted) ** 2).mean()
            loss.backward()
            # A process that is killed while a DataLoader starts leaves its semaphores in /dev/shm.
            if world.rank == 0 and number == 2:
                print("middle of an epoch", flush=True)
            time.sleep(PAUSE * (1 if world.attempt > 1 else 10))  # attempts 0 and 1 are killed
            if KIND != "accumulate" or number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
                world.loss = loss
        torch.distributed.all_reduce(torch.ones(1))
        scheduler.step()
        if world.rank == 0:
            print(f"epoch {epoch} is over", flush=True)
    held = [p.tolist() for p in model.state_dict().values()] + [v["momentum_buffer"].tolist() for v in optimizer.state.values()]
    print("end", hashlib.sha256(repr(held + [scheduler.last_epoch, world.completed]).encode()).hexdigest()[:16], flush=True)

train()
"""


def version(lines, sign):
    """Returns the text of one side of a diff."""
    return "".join(line[1:] + "\n" for line in lines if not line or line[0] in (" ", sign))


class ElasticTest(LaunchTest):
    def launch(self, python, text, *args, options=("--nproc-per-node", 2)):
        path = self.script("train.py", text, mode=0o644)
        return self.start("--max-restarts", 9, "--restart-backoff", "50ms", "--label", "", *options, "--env", f"PYTHONPATH={MODULES}",
                          "--env", "OMP_NUM_THREADS=1", "--env", "PYTHONWARNINGS=ignore",
                          # A killed process of a DataLoader leaves a directory.
                          "--env", f"TMPDIR={self.dir}", "--python", python, path, *args,
                          env=dict(self.env, **pytorch.environment(python)))

    def pids(self):
        """Returns the pids of the ranks."""
        return {worker.rank: worker.pid for worker in workers_of(self.job)}

    def read_until(self, process, wanted):
        """Reads lines until `wanted` matches one, and returns the match."""
        lines = []
        for line in process.stdout:
            lines.append(line)
            match = re.search(wanted, line)
            if match:
                return match
        self.fail(f"no {wanted!r} in:\n{''.join(lines)}{process.stderr.read()}")


@unittest.skipUnless(PYTHONS, pytorch.why_not())
class Example(ElasticTest):
    """The document's example."""

    steps = 1000

    def kill_one_after_another(self, process, victims, ranks):
        """Returns a message that must explain it for each survivor that did not keep its process. Gloo may forget to wake the rank
        that sends to the victim (docs/users/elastic_python.md, Limits)."""
        late = []
        self.read_until(process, rf"^attempt 0: {ranks} ranks, from step 0$")
        for attempt, victim in enumerate(victims, 1):
            last = int(self.read_until(process, r"^step (\d+) loss").group(1))
            before = self.pids()
            self.assertEqual(sorted(before), list(range(ranks)))
            os.kill(before[victim], signal.SIGKILL)
            held = int(self.read_until(process, rf"^attempt {attempt}: {ranks} ranks, from step (\d+)$").group(1))
            self.assertGreaterEqual(held, last)
            self.assertLess(held, self.steps)
            # The ranks come from each process's first environment; they do not change in this test.
            after = self.pids()
            self.assertNotEqual(after[victim], before[victim])
            replaced = [rank for rank in range(ranks) if rank != victim and after[rank] != before[rank]]
            self.assertIn(replaced, ([], [(victim + 1) % ranks]))
            late += [f"rank {rank} on .* did not leave attempt {attempt - 1} within 5 s and was killed" for rank in replaced]
        return late

    def assert_survives(self, python, victims, ranks, *options):
        # Until the last kill rank 0 rests in each step, and the others wait for it in the collective.
        script = EXAMPLE.replace("        loss.backward()\n", "        if world.rank == 0:\n            "
                                 f"__import__('time').sleep(0.02 * (world.attempt < {len(victims)}))\n        loss.backward()\n")
        self.assertNotEqual(script, EXAMPLE)
        process = self.launch(python, script, self.steps, options=options)
        messages = self.kill_one_after_another(process, victims, ranks)
        done = self.finish(process, timeout=LIMIT_S)
        self.assert_code(done, 0)
        for message in messages:
            self.assertRegex(done.err, message)
        sums = re.findall(r"^rank (\d+): weights add up to (\S+)$", done.out, re.M)
        self.assertEqual(sorted(int(rank) for rank, _ in sums), list(range(ranks)), repr(done))
        self.assertEqual(len({value for _, value in sums}), 1, done.out)

    def test_killed_workers_on_two_nodes(self):
        nodes = Nodes(self, 2)
        self.assert_survives(PYTHONS[0], [3, 0], 4, "--hostfile", nodes.hostfile, "--ssh-config", nodes.ssh_config, "--nproc-per-node", 2)

    def test_killed_workers_and_a_store_of_rank_0_at_a_fixed_port(self):
        """A survivor gives the port back before the next attempt needs it."""
        for python in PYTHONS:
            with self.subTest(python=python):
                self.assert_survives(python, [2, 0, 1], 3, "--nproc-per-node", 3, "--store", "worker", "--master-port", free_port())

    def test_an_exception_of_the_script_ends_the_job(self):
        script = EXAMPLE.replace("        world.step(step + 1)\n", "        world.step(step + 1)\n        if step >= 20 and "
                                 "world.rank == 1:\n            raise ValueError('bad batch')\n")
        self.assertNotEqual(script, EXAMPLE)
        done = self.finish(self.launch(PYTHONS[0], script, self.steps, options=("--nproc-per-node", 2, "--max-restarts", 1)))
        self.assert_code(done, 1)
        self.assertIn("ValueError: bad batch", done.err)
        self.assertEqual(done.err.splitlines()[-1].split(":")[:2], ["ddplaunch", " exit 1"])

    def test_a_script_that_cannot_work_is_not_repeated(self):
        """Not even if it hides the error behind an exit code of its own, and if it was found after a training."""
        done = self.finish(self.launch(PYTHONS[0], """import sys, torch
from ddplaunch import elastic
print("begins", flush=True)

@elastic.rejoin(backend="gloo")
def train(world, state):
    world.step(0)

train()
try:
    train()
except TypeError as error:
    sys.exit(3)
"""))
        self.assert_code(done, 3)
        self.assertEqual(done.out.count("begins"), 2, done)
        self.assertIn("not restarted, although --max-restarts allows it: another attempt would fail the same way", done.err)


@unittest.skipUnless(PYTHONS, pytorch.why_not())
class Run(ElasticTest):
    calm = {}  # results of undisturbed trainings, by interpreter and kind

    def results(self, process):
        done = self.finish(process, timeout=LIMIT_S)
        self.assert_code(done, 0)
        found = set(re.findall(r"^end (\w+)$", done.out, re.M))
        self.assertEqual(len(found), 1, f"{done.out}{done.err}")
        return found.pop()

    def undisturbed(self, python, kind):
        if (python, kind) not in self.calm:
            self.calm[python, kind] = self.results(self.launch(python, TRAINING, kind, 0))
        return self.calm[python, kind]

    def assert_survives(self, python, kind, text=TRAINING):
        calm = self.undisturbed(python, kind)
        process = self.launch(python, text, kind, 0.03)
        for attempt, rank in enumerate((0, 1)):
            self.read_until(process, rf"^attempt {attempt} ")
            self.read_until(process, "^middle")
            os.kill(self.pids()[rank], signal.SIGKILL)
        self.assertEqual(self.results(process), calm)

    def test_the_page_changes_twelve_lines(self):
        changed = [line for line in CHANGE if line[:1] in ("+", "-")]
        self.assertLessEqual(len(changed), 12, changed)
        before = version(CHANGE, "-")
        self.assertEqual(len([line for line in before.splitlines() if line]), 24)
        for python in PYTHONS:
            sums = []
            for text in (before, version(CHANGE, "+")):
                done = self.finish(self.launch(python, text, 2), timeout=LIMIT_S)
                self.assert_code(done, 0)
                sums += re.findall(r"sum of the weights: (\S+)", done.out)
            self.assertEqual(len(sums), 4)
            self.assertEqual(len(set(sums)), 1, "elastic.run trains as the script without it")

    def test_killed_ranks_of_each_kind_of_data(self):
        for python in PYTHONS:
            for kind in ("workers", "accumulate") if python == PYTHONS[0] else ("workers",):
                with self.subTest(python=python, kind=kind):
                    self.assert_survives(python, kind)

    def test_killed_ranks_with_a_stateful_loader(self):
        tested = [python for python in PYTHONS if can_import(python, "torchdata.stateful_dataloader")]
        if not tested:
            self.skipTest("no interpreter has torchdata")
        for python in tested:
            self.assert_survives(python, "stateful")

    def test_without_the_private_names_of_pytorch(self):
        """Each has another way, so a release may remove it."""
        text = "from ddplaunch import _torch\n_torch.find = lambda owner, name: None\n" + TRAINING
        for python in PYTHONS:
            with self.subTest(python=python):
                self.assert_survives(python, "accumulate", text)

    def test_no_usable_state_starts_all_processes_again(self):
        text = TRAINING.replace("        scheduler.step()\n        if", "        if epoch == 3 and world.attempt == 0:\n            optimizer.step()\n"
                                "            print('epoch of attempt 0', flush=True)\n            time.sleep(1000 if world.rank else 0)\n"
                                "            torch.distributed.all_reduce(torch.ones(1))\n        scheduler.step()\n        if")
        self.assertNotEqual(text, TRAINING)
        process = self.launch(PYTHONS[0], text, "accumulate", 0)
        for _ in range(2):  # the step of both ranks is over
            self.read_until(process, "^epoch of")
        os.kill(self.pids()[1], signal.SIGKILL)
        done = self.finish(process, timeout=LIMIT_S)
        self.assert_code(done, 0)
        self.assertIn("ddplaunch.elastic: no rank has a state that can be used, so this process starts again", done.err)
        self.assertEqual(set(re.findall(r"^end (\w+)$", done.out, re.M)), {self.undisturbed(PYTHONS[0], "accumulate")})


def can_import(python, module):
    return subprocess.run([python, "-W", "ignore", "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


class PrivateNames(unittest.TestCase):
    def test_each_private_name_stands_in_the_table(self):
        """A name with an underscore that the package does not define itself is PyTorch's."""
        trees = {path.name: ast.parse(path.read_text()) for path in sorted(MODULE.glob("*.py"))}
        own, used = set(), {}
        for name, tree in trees.items():
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    own.add(node.name)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self":
                    own.add(node.attr)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    own.add(node.id)
                elif isinstance(node, ast.ImportFrom) and node.level:
                    own.update([node.module or "", *(alias.name for alias in node.names)])
        for name, tree in trees.items():
            for node in ast.walk(tree):
                texts = [node.attr] if isinstance(node, ast.Attribute) else re.findall(r"^\w+$|(?<=\.)_\w+", node.value) if (
                    isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value) else []
                for text in texts:
                    if text.startswith("_") and not text.startswith("__") and text not in own:
                        used.setdefault(text, name)
        self.assertEqual(set(used.values()), {"_torch.py"}, used)
        table = {name.strip() for row in ast.get_docstring(trees["_torch.py"]).splitlines() if row.count("|") == 6
                 for name in row.split("|")[0].split(",")} - {"name", ""}
        self.assertEqual(table, set(used))


# The loop of each library, as far as the callbacks see it: the order of the calls is that of Lightning 2.6 and Transformers 5.24.
STAND_INS = {"lightning": """
import sys, types
lightning = types.ModuleType("lightning")
class Callback: pass
lightning.Callback = Callback
""", "transformers": """
import sys, types
transformers = types.ModuleType("transformers")
class TrainerCallback: pass
transformers.TrainerCallback = TrainerCallback
"""}
STAND_IN_LOOPS = {"lightning": """
class Strategy:
    def reduce_boolean_decision(self, decision, all=True): return decision
trainer = types.SimpleNamespace(global_step=0, callback_metrics={}, should_stop=False, strategy=Strategy())
callback = Reports()
callback.on_train_start(trainer, None)
while not trainer.should_stop and trainer.global_step < 50:
    trainer.global_step += 1
    trainer.callback_metrics["loss"] = torch.tensor(0.5, requires_grad=True)
    stop_at(trainer.global_step)
    callback.on_train_batch_end(trainer, None, None, None, trainer.global_step - 1)
print("steps", trainer.global_step)
""", "transformers": """
args = types.SimpleNamespace(device="cpu", world_size=1)
state = types.SimpleNamespace(global_step=0, log_history=[])
control = types.SimpleNamespace(should_save=False, should_training_stop=False)
callback = Reports()
while not control.should_training_stop and state.global_step < 50:
    state.global_step += 1
    stop_at(state.global_step)
    callback.on_step_end(args, state, control)
    state.log_history.append({"loss": 0.5})
print("steps", state.global_step)
"""}
REAL_LOOPS = {"lightning": """
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        stop_at(self.trainer.global_step + 1)
        loss = self.layer(batch[0]).sum() * 0 + 0.5
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(100, 4)), batch_size=2)
trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False, callbacks=[Reports()])
trainer.fit(Model(), data)
print("steps", trainer.global_step)
""", "transformers": """
import tempfile
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.step = 0
    def forward(self, x):
        self.step += 1
        stop_at(self.step)
        return {"loss": self.layer(x).sum() * 0 + 0.5}
arguments = transformers.TrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=50, logging_steps=1, report_to=[],
                                           disable_tqdm=True, per_device_train_batch_size=1, save_strategy="no")
trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=[{"x": torch.ones(4)}] * 100, callbacks=[Reports()])
trainer.train()
print("steps", trainer.state.global_step)
"""}
STOP = """
import os, signal, sys, types
import torch
import ddplaunch
def stop_at(step):
    if step == 7:
        os.kill(os.getpid(), signal.SIGTERM)
"""


@unittest.skipUnless(PYTHONS, pytorch.why_not())
class Callbacks(LaunchTest):
    """The callbacks of the page report steps and losses, and stop after the step in which the signal comes."""

    def drive(self, python, library, is_real):
        page = (SOURCE / "docs/users/metrics.md").read_text()
        callback, = (code for code in re.findall(r"```python\n(.*?)```", page, re.S) if f"class Reports({library}." in code)
        text = STOP + (f"import {library}\n" if is_real else STAND_INS[library]) + callback + (REAL_LOOPS if is_real else STAND_IN_LOOPS)[library]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
            path = self.dir / "metrics.sock"
            path.unlink(missing_ok=True)
            reports.bind(str(path))
            reports.settimeout(10)
            env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
            done = subprocess.run([python, "-W", "ignore", self.script("callback.py", text)], capture_output=True, text=True, timeout=LIMIT_S,
                                  env=dict(env, PYTHONPATH=str(MODULES), DDPLAUNCH_METRICS=str(path), CUDA_VISIBLE_DEVICES=""), cwd=self.dir, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.splitlines()[-1], "steps 7", done.stdout + done.stderr)
            received = []
            while not received or received[-1]["step"] < 7:
                received.append(json.loads(reports.recv(4096)))
        self.assertEqual((received[-1]["step"], received[-1].get("loss")), (7, 0.5))

    def test_in_the_order_of_the_libraries(self):
        for library in STAND_INS:
            with self.subTest(library=library):
                self.drive(PYTHONS[0], library, False)

    def test_in_the_libraries(self):
        named = [os.environ.get(pytorch.NAMED), f"{os.environ.get('DDP_CLIENTS_VENV', SOURCE / 'build/clients')}/bin/python"]
        for library in STAND_INS:
            with self.subTest(library=library):
                python = next((name for name in named if name and os.access(name, os.X_OK) and can_import(name, library)), None)
                if python is None:
                    self.skipTest(f"neither {pytorch.NAMED} nor DDP_CLIENTS_VENV has {library}")
                self.drive(python, library, True)


if __name__ == "__main__":
    main()

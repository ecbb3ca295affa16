#!/usr/bin/env python3
"""Tests the scripts that `./dev gpu` packs, with fake programs.

usage: run_sh_test.py [unittest options]
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SKIPS = "echo 'skipped: no GPU' >&2\nexit 77\n"
# A fake rank that has made 30 steps. It then waits for the other rank, which writes its pid.
RANK = """metrics=; before=; for word in "$@"; do [ "$before" = --metrics-file ] && metrics=$word; before=$word; done
case "$*" in *' nccl '*) ;; *) echo 'train: this one plays NCCL only' >&2; exit 2;; esac
if [ "$RANK" = 1 ]; then echo $$ >"$PLACE/pid"; exec sleep 60; fi
until [ -s "$PLACE/pid" ]; do sleep 0.01; done
for step in $(seq 30); do echo '{"kind":"step","time":"2026-11-22T10:00:00.000Z","step":'$step',"epoch":1}'; done >"$metrics"
"""


class Pack(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        (self.place / "bin").mkdir()
        (self.place / "tools").mkdir()
        for script in ("run.sh", "steps.sh"):
            shutil.copy(HERE / script, self.place)
        self.program("nodes", "exit 77\n", "")
        self.program("python3", "exit 1\n", "tools")  # an import of a real torch takes seconds
        for name in ("gpu_parity", "gpu_check", "gpu_costs"):
            self.program(name, SKIPS)
        self.program("train", "echo 'train: no GPU' >&2\nexit 2\n")
        self.program("ddplaunch", "echo 'train: no GPU' >&2\necho 'ddplaunch: exit 2: rank 0 on localhost exited 2' >&2\nexit 2\n")

    def program(self, name, text, folder="bin"):
        path = self.place / folder / name
        # run.sh calls each packed program with --help to see whether it starts.
        starts = '[ "$1" != --help ] || exit 0\n' if folder == "bin" and "loading shared" not in text else ""
        path.write_text("#!/bin/bash\n" + starts + text, encoding="utf-8")
        path.chmod(0o755)

    def environment(self, only):
        # No tools of the machine are in PATH, so the same steps are skipped everywhere.
        return {"PATH": f"{self.place}/tools:/usr/bin:/bin", "PLACE": str(self.place), "HOME": str(self.place), "DDP_GPU_ONLY": only}

    def run_it(self, only="", **environment):
        done = subprocess.run(["bash", str(self.place / "run.sh")], cwd="/", capture_output=True, text=True, timeout=250,
                              env={**self.environment(only), **environment}, check=False)
        results = json.loads((self.place / "results.json").read_text(encoding="utf-8"))
        return done, results, {step["step"]: step for step in results["steps"]}

    def expect(self, step, state, reason="", figures=None):
        self.assertEqual((step["state"], step["reason"]), (state, reason))
        if figures is not None:
            self.assertEqual(step["figures"], figures)


class RunSh(Pack):
    def test_results_have_figures_reasons_and_an_exit_code(self):
        self.program("gpu_parity", "echo '{\"check\":\"parity\",\"ok\":true}'\n")
        self.program("gpu_check", 'case $1 in replay) echo "it said \\"no\\"\tand \\\\ went" >&2; exit 3;; '
                                  "train) echo 'skipped: no GPU' >&2; exit 77;; speed) exit 0;; *) exit 2;; esac\n")
        done, results, steps = self.run_it("parity replay train speed")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.expect(steps["parity"], "ok", "", {"check": "parity", "ok": True})
        self.expect(steps["speed"], "ok")
        self.expect(steps["replay"], "failed", 'exit code 3: it said "no" and \\ went')
        self.expect(steps["train"], "skipped", "no GPU")
        self.assertEqual((results["failed"], results["commit"], len(steps)), (1, "unknown", 4))

    def test_the_packed_loader_is_chosen_for_each_program(self):
        # The fake loader is a shell: it gets the options, then the program.
        (self.place / "lib").mkdir()
        self.program("ld-linux-x86-64.so.2", 'export LIBRARIES=$2\nshift 2\nexec bash "$@"\n', "lib")
        self.program("gpu_check", 'echo "{\\"libraries\\":\\"$LIBRARIES\\"}"\n')
        self.program("gpu_parity", '[ "$LIBRARIES" ] || { echo "gpu_parity: error while loading shared libraries: libfmt.so.9: cannot '
                                   'open shared object file" >&2; exit 127; }\necho "{\\"libraries\\":\\"$LIBRARIES\\"}"\n')
        for more, libraries in (({}, f"{self.place}/lib"), ({"LD_LIBRARY_PATH": "/driver"}, f"{self.place}/lib:/driver")):
            done, _, steps = self.run_it("parity replay", **more)
            self.assertEqual(done.stdout.splitlines()[0], "with the packed libraries: gpu_parity")
            self.expect(steps["replay"], "ok", "", {"libraries": ""})
            self.expect(steps["parity"], "ok", "", {"libraries": libraries})

    def test_the_run_is_skipped_when_all_steps_are_skipped(self):
        (self.place / "commit").write_text("abc1234\n", encoding="utf-8")
        done, results, steps = self.run_it()
        self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
        self.assertEqual((results["ok"], results["failed"], results["commit"]), (0, 0, "abc1234"))
        self.assertEqual(results["skipped"], len(steps))
        self.assertGreater(len(steps), 30)
        for name in ("device-train", "nccl", "health", "bench-2", "bench-4", "lost-first", "lost-first-eager", "lost-KILL", "lost-STOP", "rejoin-KILL", "rejoin-STOP",
                     "nodes", "images-100-float32-1"):
            self.expect(steps[name], "skipped", "train: no GPU")
        self.expect(steps["torch-4096-2"], "skipped", "no python3 here has a torch that sees a GPU")
        self.expect(steps["nccl-tests"], "skipped", "nccl-tests' all_reduce_perf is not here")
        for step in steps.values():
            self.assertNotEqual(step["reason"], "", step)

    def test_the_time_is_bounded(self):
        for name in ("gpu_parity", "gpu_check"):
            self.program(name, '[ "$1" ] || exit 2\nexec sleep 100\n')
        done, _, steps = self.run_it(DDP_GPU_SECONDS="8")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(steps["replay"]["reason"], "^not ready after [1-8] seconds$")
        self.assertEqual(steps["parity"]["reason"], "the 8 seconds are over")

    def test_a_slow_tool_is_no_failure(self):
        self.program("compute-sanitizer", 'case "$*" in *memcheck*) exec sleep 100;; *racecheck*) exit 9;; esac\n', "tools")
        _, _, steps = self.run_it("memcheck racecheck initcheck", DDP_GPU_SECONDS="4")
        self.assertRegex(steps["memcheck"]["reason"], "^not ready after [1-4] seconds$")
        self.assertEqual(steps["memcheck"]["state"], "skipped")
        _, _, steps = self.run_it("racecheck initcheck")
        self.assertEqual((steps["racecheck"]["state"], steps["initcheck"]["state"]), ("failed", "ok"))

    def test_the_profiler_leaves_the_clocks_as_they_are(self):
        self.program("ncu", 'echo "$*" >>"$PLACE/arguments"; while [ "$1" != --log-file ]; do shift; done\ncat >"$2" <<END\n'
                            '==PROF== Connected\n"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
                            '"0","void ddp::train::kernels::device::run_body<Gemm<float, float>>(Args)","(1, 1, 1)","t","ns","1,500"\n'
                            '"1","other(int)","(1, 1, 1)","t","us","4"\n'
                            '"2","void ddp::train::kernels::device::run_body<Gemm<float, float>>(Args)","(1, 1, 1)","t","ns","2,500"\nEND\n',
                     "tools")
        _, _, steps = self.run_it("ncu-100 ncu-4096")
        kernels = [{"name": "run_body<Gemm<float, float>>(Args)", "launches": 2, "us": 2}, {"name": "other(int)", "launches": 1, "us": 4}]
        self.expect(steps["ncu-100"], "ok", "", {"batch": 100, "kernels": kernels})
        self.expect(steps["ncu-4096"], "ok", "", {"batch": 4096, "kernels": kernels})
        for line, batch in zip((self.place / "arguments").read_text(encoding="utf-8").splitlines(), ("100", "4096")):
            self.assertRegex(line, rf"^--clock-control none .* --batch-size {batch} ")
        self.program("ncu", 'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1\n', "tools")
        _, _, steps = self.run_it("ncu-100")
        self.expect(steps["ncu-100"], "skipped", "the driver lets this user read no counters (ERR_NVGPUCTRPERM)")

    def test_the_smoke_test_comes_first_and_is_bounded(self):
        smoke = ["machine", "replay", "nccl", "lost-first", "lost-KILL", "lost-first-eager"]
        done, results, steps = self.run_it("smoke costs")
        self.assertEqual([step["step"] for step in results["steps"]], [*smoke, "costs"], done.stderr)
        self.program("gpu_check", "exec sleep 100\n")
        _, _, steps = self.run_it("smoke costs", DDP_GPU_SMOKE_SECONDS="6")
        self.assertRegex(steps["replay"]["reason"], "^not ready after [1-6] seconds$")
        self.expect(steps["lost-KILL"], "skipped", "the 6 seconds of the smoke test are over")
        self.expect(steps["costs"], "skipped", "no GPU")

    def test_the_results_are_also_a_text(self):
        self.program("gpu_parity", "echo '{\"rows\":[{\"bytes\":4},{\"bytes\":8}]}'\n")
        self.run_it("parity replay")
        self.assertRegex((self.place / "results.txt").read_text(encoding="utf-8"),
                         r'^replay +skipped +\d+ s  no GPU\nparity +ok +\d+ s  \n    \{"rows":\[\{"bytes":4\},\n      \{"bytes":8\}\]\}\n$')

    def test_the_nccl_library_of_pytorch_is_found(self):
        library = self.place / ".local/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
        library.parent.mkdir(parents=True)
        library.touch()
        self.program("ldconfig", "exit 0\n", "tools")
        self.program("train", 'echo "{\\"weights\\":\\"$DDPLAUNCH_NCCL_LIBRARY\\"}" >&2; exit 2\n')
        _, _, steps = self.run_it("nccl")
        self.assertEqual(json.loads(steps["nccl"]["reason"])["weights"], str(library))
        _, _, steps = self.run_it("nccl", DDPLAUNCH_NCCL_LIBRARY="/named")
        self.assertEqual(json.loads(steps["nccl"]["reason"])["weights"], "/named")

    def start(self, only):
        return subprocess.Popen(["bash", str(self.place / "run.sh")], cwd="/", env=self.environment(only), text=True, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_a_signal_ends_the_run_and_keeps_the_results(self):
        self.program("gpu_parity", "echo '{\"check\":\"parity\",\"ok\":true}'\n")
        self.program("gpu_check", '[ "$1" = train ] || exit 2\necho $$ >"$PLACE/under-way"\nexec sleep 100\n')
        for one, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            os.mkfifo(self.place / "under-way")
            with self.start("parity train costs") as running:
                with open(self.place / "under-way", encoding="utf-8") as reported:  # open() returns when the step starts
                    number = int(reported.readline())
                os.kill(running.pid, one)
                out, err = running.communicate(timeout=60)
            self.assertEqual((running.returncode, err), (code, ""), out)
            self.assertRegex(out.splitlines()[-1], rf"^1 ok, 0 failed, 1 skipped until {one.name} came after \d+ s: ")
            results = json.loads((self.place / "results.json").read_text(encoding="utf-8"))
            self.assertEqual([(step["step"], step["state"], step["reason"]) for step in results["steps"]],
                             [("parity", "ok", ""), ("train", "skipped", f"ended by {one.name}")])
            self.assertRegex((self.place / "results.txt").read_text(encoding="utf-8"), rf"train +skipped +\d+ s  ended by {one.name}\n$")
            self.assertFalse(Steps.runs(number), "the step is still there")
            (self.place / "under-way").unlink()

    def test_an_unknown_step_is_refused_before_any_step_runs(self):
        with self.start("parity lost-KIL") as running:
            out, err = running.communicate(timeout=60)
        self.assertEqual((running.returncode, out), (2, ""))
        self.assertRegex(err, r'^run\.sh: DDP_GPU_ONLY names no step "lost-KIL"; the steps are machine replay nccl .* parity .* ncu-4096, and smoke has the first ones\n$')
        self.assertFalse((self.place / "results.json").exists())


class Steps(Pack):
    def test_a_refused_option_is_a_failure_when_nothing_is_missing(self):
        # This train accepts only the plainest uses.
        self.program("train", 'case "$*" in "health 1ms"*|*" -e 8 "*) exit 0;; esac\necho "train: --what: no such option" >&2; exit 2\n')
        self.program("ddplaunch", 'echo "train: --what: no such option" >&2\necho "ddplaunch: exit 2: rank 0 on localhost exited 2" >&2\nexit 2\n')
        _, _, steps = self.run_it("device-train health nccl bench-2 lost-KILL rejoin-KILL nodes images-100-float32-1")
        self.assertEqual(len(steps), 8)
        for step in steps.values():
            self.expect(step, "failed", "exit code 1: exit code 2: train: --what: no such option")
        # Without NCCL the steps that need it are skipped, and no others.
        self.program("train", 'case "$*" in "health 1ms"*) exit 0;; esac\necho "train: no NCCL" >&2; exit 2\n')
        _, _, steps = self.run_it("health bench-2")
        self.assertEqual((steps["health"]["state"], steps["bench-2"]["state"]), ("failed", "skipped"))

    def test_two_ranks_must_give_the_same_weights_over_nccl_as_over_tcp(self):
        self.program("train", 'case "$*" in *"--device cpu --comm"*) echo "not on the GPU" >&2; exit 3;; esac\n'
                              'case "$*" in *nccl*) way=a;; *) way=${OTHER:-a};; esac\n'
                              'echo "weights equal on $WORLD_SIZE ranks: $way"; echo "test accuracy 50.0 % (1/2)"\n')
        _, _, steps = self.run_it("nccl device-train")
        self.expect(steps["nccl"], "ok", "", {"nccl": "a", "tcp": "a"})
        self.expect(steps["device-train"], "ok")
        _, _, steps = self.run_it("nccl", OTHER="b")
        self.expect(steps["nccl"], "failed", "exit code 1: other weights over NCCL than over TCP")

    def test_gpus_are_shared_when_there_are_too_few(self):
        self.program("train", 'case "$*" in *--share-gpu*) echo shared >&2;; *) echo alone >&2;; esac; exit 2\n')
        self.program("nvidia-smi", 'case $1 in -L) echo "GPU 0: x"; echo "GPU 1: x";; *) echo "x, 1";; esac\n', "tools")
        _, _, steps = self.run_it("bench-2 bench-4")
        self.assertEqual((steps["bench-2"]["reason"], steps["bench-4"]["reason"]), ("alone", "shared"))

    def test_the_figures_of_a_bench_with_a_wrong_result_are_kept(self):
        self.program("train", 'for path; do :; done\n[ "$RANK" != 0 ] || echo "{\\"rows\\":[{\\"wrong\\":3}]}" >"$path"\n'
                              'echo "train: 3 wrong elements" >&2; exit 1\n')
        _, _, steps = self.run_it("bench-2")
        self.expect(steps["bench-2"], "failed", "exit code 1: exit code 1: train: 3 wrong elements", {"rows": [{"wrong": 3}]})

    def test_images_per_second_are_those_after_the_first_epoch(self):
        self.program("train", 'for path; do :; done\nfor rate in 1:5 2:30.5 2:10 3:20; do\n'
                              'echo "{\\"kind\\":\\"interval\\",\\"epoch\\":${rate%:*},\\"images_per_second\\":${rate#*:}}"; done >"$path"\n')
        _, _, steps = self.run_it("images-100-float32-1")
        self.expect(steps["images-100-float32-1"], "ok", "", {
            "batch": 100, "dtype": "float32", "images_per_second": 20, "least": 10, "most": 30.5, "intervals": 3})

    def test_an_mlp_is_measured_with_the_library_that_multiplies(self):
        self.program("train", 'for path; do :; done\necho "$*" | sed "s/ --metrics-file.*//" >>"$PLACE/options"\n'
                              'echo "matrix products by cuBLASLt 13.0.2 (/x)"\n'
                              'echo "{\\"kind\\":\\"interval\\",\\"epoch\\":2,\\"images_per_second\\":7}" >"$path"\n')
        _, _, steps = self.run_it("mlp-float32-1 mlp-tf32-1 mlp-bfloat16-1")
        for numbers, dtype, precision in (("float32", "float32", ""), ("tf32", "float32", " --matmul-precision high"), ("bfloat16", "bfloat16", "")):
            self.expect(steps[f"mlp-{numbers}-1"], "ok", "", {"batch": 4096, "dtype": dtype, "images_per_second": 7, "least": 7, "most": 7,
                                                              "intervals": 1, "products": "cuBLASLt 13.0.2 (/x)"})
            options = (self.place / "options").read_text(encoding="utf-8").splitlines()
            self.assertEqual(len([line for line in options if f"--dtype {dtype} " in line and
                                  line.endswith("--model mlp --mlp-width 2048 --mlp-depth 7" + precision)]), 1, options)

    def test_a_killed_rank_must_be_reported(self):
        # CUDA's setting reaches the ranks of one step only.
        self.program("train", 'echo "${CUDA_MODULE_LOADING:-lazy}" >>"$PLACE/loading"; exit 2\n')
        self.run_it("smoke")
        loading = (self.place / "loading").read_text(encoding="utf-8").split()
        self.assertEqual((loading[-1], set(loading)), ("EAGER", {"lazy", "EAGER"}))
        reported = RANK + 'while kill -0 "$(cat "$PLACE/pid")" 2>/dev/null; do sleep 0.01; done\n' \
                      'echo "train: rank 0 over NCCL: remote error during all-reduce" >&2; exit 1\n'
        self.program("train", reported)
        _, _, steps = self.run_it("lost-KILL")
        self.expect(steps["lost-KILL"], "ok")
        figures = steps["lost-KILL"]["figures"]
        self.assertEqual((figures["signal"], figures["said"]), ("KILL", "train: rank 0 over NCCL: remote error during all-reduce"))
        self.assertLess(figures["ended_after_ms"], 10_000)
        (self.place / "pid").unlink()
        # In the first step no record of a step is awaited, but the rank's log of samples.
        first = reported.replace('echo $$ >"$PLACE/pid"', 'echo $$ >"$PLACE/pid"; echo 0 1: 5 >"${!#}/rank-1"').replace("seq 30", "seq 0")
        self.program("train", first)
        _, _, steps = self.run_it("lost-first")
        self.expect(steps["lost-first"], "ok")
        (self.place / "pid").unlink()
        self.program("train", reported.replace("exit 1", "exit 3"))
        _, _, steps = self.run_it("lost-KILL")
        self.assertRegex(steps["lost-KILL"]["reason"], "^exit code 1: the other rank ended with 3 and said: train: rank 0 over NCCL")

    def test_a_frozen_rank_must_be_found_at_the_deadline_and_not_before(self):
        late = 'exec 2>&2; sleep %s; echo "train: rank 0 over NCCL: %s during all-reduce" >&2; exit 1\n'
        words = "the other ranks did not join the operation within 5 s"
        for seconds, said, state, reason in (("5", words, "ok", ""), ("0.1", words, "failed", "the deadline of 5 s was over after"),
                                             ("5", "remote error", "failed", "not by the deadline: ")):
            (self.place / "pid").unlink(missing_ok=True)
            self.program("train", RANK + late % (seconds, said))
            _, _, steps = self.run_it("lost-STOP")
            self.assertEqual(steps["lost-STOP"]["state"], state, steps["lost-STOP"])
            self.assertIn(reason, steps["lost-STOP"]["reason"])
            # The step leaves no process, although its process was stopped.
            number = int((self.place / "pid").read_text(encoding="utf-8"))
            self.assertFalse(self.runs(number), "the stopped rank is still there")

    @staticmethod
    def runs(number):
        try:
            with open(f"/proc/{number}/stat", encoding="utf-8") as stat:
                return stat.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def test_a_job_that_continues_is_timed_to_its_first_new_step(self):
        # A fake launcher does all: rank 1 is a separate process, and two new steps follow its end.
        self.program("ddplaunch", """before=; for word in "$@"; do
  case $before in --metrics-file) metrics=$word;; bash) ;; esac
  case $word in */pid) pid=$word;; esac; before=$word; done
step() { echo '{"kind":"step","time":"'$(date -u +%Y-%m-%dT%H:%M:%S.%3NZ)'","step":'$1',"epoch":1}' >>"$metrics"; }
sleep 60 & echo $! >"$pid.1"
for one in $(seq 25); do step $one; done
wait $!
step 26
echo 'ddplaunch: attempt 1: 3 ranks continue from step 25 (state of rank 0), recovered in 7 ms' >&2
step 26; step 27
exec sleep 60
""")
        _, _, steps = self.run_it("rejoin-KILL")
        self.expect(steps["rejoin-KILL"], "ok")
        figures = steps["rejoin-KILL"]["figures"]
        self.assertTrue(0 <= figures["first_new_step_ms"] < 5000, figures)
        self.assertEqual(figures["launcher"], "ddplaunch: attempt 1: 3 ranks continue from step 25 (state of rank 0), recovered in "
                                              "7 ms")
        self.program("ddplaunch", "echo 'ddplaunch: exit 113: lost' >&2; exit 113\n")
        _, _, steps = self.run_it("rejoin-KILL")
        self.expect(steps["rejoin-KILL"], "failed", "exit code 1: the job did not begin: ddplaunch: exit 113: lost")

    def test_two_nodes_run_without_an_sshd(self):
        self.program("ddplaunch", 'case "$*" in *"--node-rank 0"*) echo "${DDPLAUNCH_TOKEN:?}" >"$PLACE/token.0"; '
                                  'echo "weights equal on 2 ranks: abc";; *) echo "$DDPLAUNCH_TOKEN" >"$PLACE/token.1";; esac\n')
        _, _, steps = self.run_it("nodes")
        self.expect(steps["nodes"], "ok", "", {"way": "two launchers", "weights": "abc"})
        tokens = {(self.place / f"token.{node}").read_text(encoding="utf-8") for node in (0, 1)}
        self.assertEqual(len(tokens), 1)
        self.assertEqual(len(tokens.pop().strip()), 64)
        self.program("ddplaunch", "exit 0\n")
        _, _, steps = self.run_it("nodes")
        self.assertEqual(steps["nodes"]["state"], "failed")

    def test_rows_of_nccl_tests_are_parsed(self):
        self.program("all_reduce_perf", """echo '#  Rank  0 Group  0 Pid 1'
echo '#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong'
echo '           4             1     float     sum      -1    20.00    0.00    0.00      0    10.50    0.00    0.25      0'
echo '          16             4     float     sum      -1    20.00    0.00    0.00      0    11.00    0.00    0.50    N/A'
echo '# Out of bounds values : 0 OK'
""")
        self.program("nvidia-smi", 'case $1 in -L) echo "GPU 0: x"; echo "GPU 1: x";; *) echo "x, 1";; esac\n', "tools")
        _, _, steps = self.run_it("nccl-tests")
        self.expect(steps["nccl-tests"], "ok", "", {"ranks": 2, "rows": [
            {"bytes": 4, "mean_us": 10.5, "busbw_gbps": 0.25, "wrong": 0}, {"bytes": 16, "mean_us": 11, "busbw_gbps": 0.5, "wrong": None}]})
        # On one GPU the ranks meet as separate hosts, which needs MPI.
        self.program("nvidia-smi", "exit 1\n", "tools")
        self.program("mpirun", 'case $1 in --version) echo other; exit;; esac\nwhile [ "$1" != bash ]; do shift; done\n'
                               'for PMI_RANK in 0 1; do export PMI_RANK; "$@"; done\n', "tools")
        _, _, steps = self.run_it("nccl-tests")
        self.expect(steps["nccl-tests"], "skipped", "nccl-tests was built without MPI, which two ranks on one GPU need")
        self.program("all_reduce_perf", 'echo "$PMI_RANK $NCCL_HOSTID $NCCL_TESTS_DEVICE $NCCL_NET" >&2; exit 4\n')
        _, _, steps = self.run_it("nccl-tests")
        self.assertIn("1 1 0 Socket", steps["nccl-tests"]["reason"])

    def test_pytorch_that_fails_is_reported(self):
        self.program("python3", 'case $1 in -c) exit 0;; esac\necho "RuntimeError: no room" >&2; exit 1\n', "tools")
        _, _, steps = self.run_it("torch-100-1")
        self.expect(steps["torch-100-1"], "failed", "exit code 1: exit code 1: RuntimeError: no room")


if __name__ == "__main__":
    os.umask(0o022)
    unittest.main()

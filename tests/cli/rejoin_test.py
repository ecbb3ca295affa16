#!/usr/bin/env python3
"""Tests ranks that survive the loss of others (docs/developers/worker_protocol.md): `train --on-peer-loss rejoin` over SSH nodes."""

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import BIN, is_running, main, wait_until
from tests.support.rejoin import LIMIT, RejoinTest, kill, samples, socket_folder, step_records, stopped


class LostRanks(RejoinTest):
    def begun(self, *args, workers=4, step=30, training=(), epochs=6, **named):
        """Starts a job and waits for the step. Returns its process and its workers by rank."""
        process = self.on_nodes(*args, *self.training(*training, epochs=epochs), **named)
        self.wait_for_step(step, process)
        return process, self.by_rank(self.wait_for_workers(workers))

    def test_a_killed_rank_is_replaced_and_the_others_survive(self):
        process, first = self.begun("--max-restarts", 3)
        kill(first[3].pid)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 4)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual([second[rank] for rank in range(3)], [first[rank] for rank in range(3)])
        self.assertNotEqual(second[3].pid, first[3].pid)
        done = self.finish(process)
        self.assert_trained(done, 4)
        self.assertIn("rank 3 on 127.0.0.3 killed by SIGKILL; the other ranks survive: restart 1 of 3\n", done.err)
        self.assertRegex(done.err, r"attempt 1: 4 ranks continue from step \d+ \(state of rank [0-2]\), recovered in \d+ ms\n")

    def test_without_restarts_the_first_loss_will_end_the_job(self):
        warning = ("train: the first lost rank will end the job, although --on-peer-loss rejoin is given: --max-restarts is 0; "
                   "give ddplaunch --max-restarts N")
        for restarts, lines in ((0, 1), (1, 0)):
            done = self.finish(self.here("--max-restarts", restarts, *self.training(epochs=1), nproc=2))
            self.assert_code(done, 0)
            self.assertEqual(done.err.count(warning), lines, done.err)

    def test_rank_0_is_replaced(self):
        process, first = self.begun("--max-restarts", 1)
        kill(first[0].pid)
        self.wait_until_trained_on(1, process)
        self.assert_trained(self.finish(process), 4)

    def test_two_ranks_of_two_nodes_are_lost_at_once(self):
        process, first = self.begun("--max-restarts", 2)
        kill(first[1].pid, first[2].pid)
        self.wait_until_trained_on(1, process)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual((second[0], second[3]), (first[0], first[3]))
        self.assert_trained(self.finish(process), 4)

    def test_all_ranks_of_a_node_are_lost_at_once(self):
        process, first = self.begun("--max-restarts", 2)
        kill(first[2].pid, first[3].pid)
        self.wait_until_trained_on(1, process)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual((second[0], second[1]), (first[0], first[1]))
        self.assertEqual(second[2].agent, first[2].agent)
        self.assert_trained(self.finish(process), 4)

    def replaced_while_stdout_is_not_read(self, start, killed):
        flood = f'{BIN.parent}/tests/bench_lines - 60000 & exec {BIN}/train "$@" >/dev/null'
        process = start("--max-restarts", 1, "sh", "-c", flood, *self.training())
        self.wait_for_step(30, process)
        first = self.by_rank(self.wait_for_workers(4))
        sizes = [0]

        def blocked():
            sizes.append(sum(path.stat().st_size for path in self.job_dir.glob("attempt_0/*.stdout")))
            time.sleep(0.3)
            return sizes[-1] > 0 and sizes[-1] == sizes[-2]
        with stopped(*(worker.pid for worker in first.values())):
            self.assertTrue(wait_until(blocked, 20), sizes)
            kill(*(first[rank].pid for rank in killed))
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 4)
        second = self.by_rank(self.wait_for_workers(4))
        survivors = [rank for rank in range(4) if rank not in killed]
        self.assertEqual([second[rank] for rank in survivors], [first[rank] for rank in survivors])
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual(samples.problems(self.samples, LIMIT, 6), [], done.err)
        self.assertNotRegex(done.err, "credit|no surviving rank|was lost")
        return done

    def test_a_killed_rank_is_replaced_while_stdout_is_not_read(self):
        self.replaced_while_stdout_is_not_read(self.here, [3])

    def test_all_ranks_of_a_node_are_replaced_while_stdout_is_not_read(self):
        done = self.replaced_while_stdout_is_not_read(self.on_nodes, [2, 3])
        self.assertNotIn("in time", done.err)

    def test_a_node_with_a_process_that_cannot_be_killed_starts_no_next_attempt(self):
        freezer = pathlib.Path("/sys/fs/cgroup/freezer/" + self.job)
        try:
            freezer.mkdir()
        except OSError as error:
            self.skipTest(f"no freezer (control groups of version 1) here: {error}")

        def remove_freezer():
            wait_until(lambda: not (freezer / "cgroup.procs").read_text())
            freezer.rmdir()
        self.addCleanup(remove_freezer)
        pid_file = self.dir / "pid"
        script = (f'[ $GROUP_RANK != 1 ] || [ $TORCHELASTIC_RESTART_COUNT != 0 ] || {{ setsid sleep 60 >/dev/null 2>&1 </dev/null & '
                  f'echo $! > {pid_file}; }}; exec {BIN}/train "$@"')
        process = self.on_nodes("--max-restarts", 3, "sh", "-c", script, *self.training("--comm-timeout", "60s", epochs=60))
        self.wait_for_step(20, process)
        first = self.by_rank(self.wait_for_workers(4))
        frozen = int(pid_file.read_text().split()[0])
        (freezer / "cgroup.procs").write_text(str(frozen))
        (freezer / "freezer.state").write_text("FROZEN")
        try:
            # Node 0 takes 5 s to leave the attempt. Meanwhile the survivors of node 1 die, as a rule after they have left it; the
            # promise holds in any order.
            os.kill(first[1].pid, signal.SIGSTOP)
            kill(first[0].pid)
            time.sleep(1)
            kill(first[2].pid, first[3].pid)
            self.wait_until_said(rf"127\.0\.0\.3.*: {frozen} \(sleep, state D")
            self.assertEqual({worker.node for worker in self.workers().values()} - {0}, set())
        finally:
            (freezer / "freezer.state").write_text("THAWED")
            with contextlib.suppress(ProcessLookupError):  # its SIGKILL may have waited
                os.kill(frozen, signal.SIGKILL)
        process.terminate()
        self.assertIn(self.finish(process).code, (137, 143))

    def test_all_ranks_on_this_machine_are_lost(self):
        process = self.here("--max-restarts", 1, *self.training())
        self.wait_for_step(30, process)
        kill(*self.wait_for_workers(4))
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertIn("restart 1 of 1", done.err)
        steps = [record["step"] for record in step_records(self.metrics)]
        self.assertEqual(steps.count(1), 2)  # one from each start
        self.assertEqual(samples.problems(self.samples, LIMIT, 6), [])

    def test_all_ranks_are_lost_and_the_last_checkpoint_is_used(self):
        saved = self.dir / "saved"
        process, first = self.begun("--max-restarts", 1, step=50, training=("--checkpoint-dir", saved, "--checkpoint-every", 20,
                                                                           "--resume", "auto"))
        kill(*(worker.pid for worker in first.values()))
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertRegex(done.out, r"(?m)^resuming from .*/step-000000[2-9]0: step \d+")
        self.assertRegex(done.out, r"(?m)^weights equal on 4 ranks")
        self.assertEqual(samples.problems(self.samples, LIMIT, 6), [])

    def test_a_worker_is_killed_while_the_others_are_revoked(self):
        process, first = self.begun("--max-restarts", 4)
        kill(first[3].pid)
        self.wait_until_said("the other ranks survive")
        kill(first[1].pid)
        self.wait_until_said(r"(?s)continue from step.*|restart 2 of 4")
        self.assert_trained(self.finish(process), 4)

    def test_a_rank_dies_in_each_attempt_until_the_restarts_are_used_up(self):
        process, first = self.begun("--max-restarts", 2)
        for attempt in range(2):
            kill(self.by_rank()[2].pid)
            self.wait_until_trained_on(attempt + 1, process)
        kill(self.by_rank()[2].pid)
        done = self.finish(process)
        self.assert_code(done, 137)
        self.assertRegex(done.err, r"root cause: rank 2 \(local rank 0\) on 127\.0\.0\.3, pid \d+: killed by SIGKILL")
        self.assertNotIn("attempt 3", done.err)

    def test_a_frozen_rank_is_named_and_killed_at_its_peers_deadline(self):
        process, first = self.begun("--max-restarts", 1, training=("--comm-timeout", "2s"))
        os.kill(first[2].pid, signal.SIGSTOP)
        self.wait_until_trained_on(1, process)
        self.assertFalse(is_running(first[2].pid))
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual([second[rank] for rank in (0, 1, 3)], [first[rank] for rank in (0, 1, 3)])
        done = self.finish(process)
        self.assert_trained(done, 4)
        self.assertRegex(done.err, r"rank \d on .* lost rank 2 .*; the other ranks survive: restart 1 of 1\n")
        self.assertIn("rank 2 on 127.0.0.3 did not leave attempt 0 within 5 s and was killed\n", done.err)

    def test_a_frozen_rank_is_found_by_the_hang_timeout(self):
        process, first = self.begun("--max-restarts", 1, "--hang-timeout", "3s", training=("--comm-timeout", "60s"))
        os.kill(first[2].pid, signal.SIGSTOP)
        self.wait_until_trained_on(1, process)
        self.assertFalse(is_running(first[2].pid))
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual([second[rank] for rank in (0, 1, 3)], [first[rank] for rank in (0, 1, 3)])
        done = self.finish(process)
        self.assert_trained(done, 4)
        # Rank 3 hears from the other node through rank 2, so rank 3 may be behind, too. If rank 2 was stopped between two
        # steps, no rank is behind. Then rank 2 is the one that does not answer the revoke.
        self.assertRegex(done.err, r"rank 2 is behind: the last reported step is|rank 2 on 127\.0\.0\.3 did not leave attempt 0")


class LostNodes(RejoinTest):
    begun = LostRanks.begun

    def test_the_job_continues_with_fewer_nodes(self):
        process, first = self.begun("--max-restarts", 3, nodes="1:2")
        kill(first[2].agent)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 2)
        self.assertEqual(self.by_rank(), {0: first[0], 1: first[1]})
        done = self.finish(process)
        self.assert_trained(done, 2)
        self.assertIn("attempt 1: 1 node, 2 workers; without 127.0.0.3\n", done.err)

    def test_a_spare_inherits_the_slot(self):
        process, first = self.begun("--max-restarts", 3, "--spares", 1)
        kill(first[2].agent)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 4)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual((second[0], second[1]), (first[0], first[1]))
        done = self.finish(process)
        self.assert_trained(done, 4)
        self.assertIn("without 127.0.0.3; with 127.0.0.4\n", done.err)

    def test_node_0_is_lost_with_agent_keeper_and_workers(self):
        # No process is left that could report the death of its workers.
        process, first = self.begun("--max-restarts", 3, "--fence", "off", nodes="1:2")
        self.addCleanup(shutil.rmtree, socket_folder(first[0]), ignore_errors=True)
        self.seen -= {first[0], first[1]}  # no process is left that could remove their sockets
        kill(first[0].keeper, first[0].agent, first[0].pid, first[1].pid)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 2)
        self.assertEqual(sorted(self.workers()), sorted((first[2].pid, first[3].pid)))
        self.assert_trained(self.finish(process), 2)

    def test_a_node_without_agent_and_keeper_returns_within_its_lease(self):
        process, first = self.begun("--max-restarts", 3)
        self.addCleanup(shutil.rmtree, socket_folder(first[2]), ignore_errors=True)
        self.seen -= {first[2], first[3]}
        began = time.monotonic()
        kill(first[2].keeper, first[2].agent)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 4)
        self.assertLess(time.monotonic() - began, 18)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual((second[0], second[1]), (first[0], first[1]))  # they run on the other node, which is the same machine
        self.assert_trained(self.finish(process), 4)

    def test_a_node_returns_to_the_running_world(self):
        process, first = self.begun("--max-restarts", 3, "--scale-up", "now", nodes="1:2", epochs=48)
        kill(first[2].agent)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 2)
        with stopped(first[0].pid, first[1].pid):
            self.wait_until_said(r"127\.0\.0\.3 joined")  # it is tried again after 5 s
        self.assertEqual(self.wait_until_trained_on(2, process)[0], 4)
        second = self.wait_for_workers(4)
        self.assertEqual((second[first[0].pid], second[first[1].pid]), (first[0], first[1]))
        done = self.finish(process)
        self.assert_trained(done, 4, 48)
        self.assertIn("the job grows from 1 to 2 nodes (--scale-up now)\n", done.err)

    def test_a_worker_is_killed_while_the_job_waits_for_a_node(self):
        process, first = self.begun("--max-restarts", 3)
        kill(first[2].agent)
        self.wait_until_said("waiting for nodes: 1 of at least 2\n")
        kill(first[1].pid)
        self.assertEqual(self.wait_until_trained_on(1, process)[0], 4)
        second = self.by_rank(self.wait_for_workers(4))
        self.assertEqual(second[0], first[0])
        self.assertNotEqual(second[1].pid, first[1].pid)
        self.assert_trained(self.finish(process), 4)

    def test_ctrl_c_while_a_node_is_waited_for(self):
        process, _ = self.begun("--max-restarts", 3)
        kill(self.by_rank()[2].agent)
        self.wait_until_said("waiting for nodes: 1 of at least 2\n")
        process.send_signal(signal.SIGINT)
        self.assert_code(self.finish(process), 130)

    def test_ctrl_c_while_ranks_are_revoked(self):
        process, first = self.begun("--max-restarts", 3)
        kill(first[3].pid)
        wait_until(lambda: "the other ranks survive" in self.said())
        process.send_signal(signal.SIGINT)
        self.assertIn(self.finish(process).code, (130, 137))


if __name__ == "__main__":
    main()

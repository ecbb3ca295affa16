#!/usr/bin/env python3
"""Tests what a job sends to TensorBoard and to a collector of OpenTelemetry."""

import http.server
import json
import os
import pathlib
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import LaunchTest, main, wait_until

# Reports two steps, and after a failure goes back by one. A point is taken once a second, so each step lasts longer.
WORKER = """
import json, os, socket, sys, time
reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in ((5, 7), (6, 7))[attempt]:
    reports.sendto(json.dumps({"step": step, "loss": step / 4}).encode(), os.environ["DDPLAUNCH_METRICS"])
    time.sleep(2.1)
sys.exit(3 if attempt == 0 else 0)
"""


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records(data):
    """The payloads of a TFRecord file, with their checksums checked."""
    masked = lambda part: ((crc32c(part) >> 15 | crc32c(part) << 17) + 0xA282EAD8) & 0xFFFFFFFF
    while data:
        size, of_size = struct.unpack_from("<QI", data)
        payload = data[12:12 + size]
        assert (of_size, struct.unpack_from("<I", data, 12 + size)[0]) == (masked(data[:8]), masked(payload))
        yield payload
        data = data[16 + size:]


def fields(data):
    """The fields of a message of Protocol Buffers, as {number: [values]}."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(tag & 7) or varint()
            value = data[at:at + size]
            at += size
        found.setdefault(tag >> 3, []).append(value)
    return found


class TensorBoard(LaunchTest):
    def test_steps_and_loss_are_records_of_an_event_file(self):
        done = self.run_job("--tensorboard", "board", "--max-restarts", 1, "--restart-backoff", "0", sys.executable, self.script("worker.py", WORKER, mode=0o644))
        self.assert_code(done, 0)
        path, = (self.dir / "board" / self.job).glob("events.out.tfevents.*")
        events = [fields(record) for record in records(path.read_bytes())]
        self.assertEqual(events[0][3], [b"brain.Event:2"])
        self.assertLess(abs(struct.unpack("<d", events[0][1][0])[0] - time.time()), 60)
        self.assertEqual([event[2][0] for event in events if 7 in event], [6])  # a new start: forget from step 6 on
        points = {}
        for event in events:
            for value in fields(event[5][0])[1] if 5 in event else []:
                scalar = fields(value)
                points.setdefault(scalar[1][0].decode(), []).append((event[2][0], struct.unpack("<f", scalar[2][0])[0]))
        self.assertEqual(points["train/loss"], [(5, 1.25), (7, 1.75), (6, 1.5), (7, 1.75)])
        self.assertLessEqual(set(points), {"train/loss", "train/seconds_per_step", "train/goodput"})

    def test_a_place_that_cannot_be_written_is_refused_and_a_full_disk_is_said_once(self):
        (self.dir / "file").touch()
        done = self.run_job("--tensorboard", "file", "true")
        self.assert_code(done, 2)
        self.assertIn("--tensorboard ", done.err)
        (self.dir / "board" / self.job).mkdir(parents=True)
        process = self.start("--tensorboard", "board", sys.executable, self.script("worker.py", WORKER.replace("3 if", "0 if"), mode=0o644))
        path = self.dir / "board" / self.job
        self.assertTrue(wait_until(lambda: list(path.iterdir())))
        file, = path.iterdir()
        file.unlink()  # as on a disk that lost it; and no other file can take its place
        os.symlink("/dev/full", file)
        done = self.finish(process)
        self.assert_code(done, 0)
        self.assertEqual(done.err.count(f"{file}: "), 1, done.err)
        self.assertIn(f"ddplaunch: warning: cannot write the file of --tensorboard: {file}: ", done.err)


class Collector(http.server.ThreadingHTTPServer):
    """Keeps what is sent, and answers with `code`; 0: never."""

    def __init__(self, code=200):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.taken.append((self.path, dict(self.headers), json.loads(body)))
                if outer.code == 0:
                    outer.over.wait(60)
                self.send_response(outer.code or 500)
                self.end_headers()

            def log_message(self, *args):
                pass
        self.code, self.taken, self.over = code, [], threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Otlp(LaunchTest):
    def collector(self, code=200):
        collector = Collector(code)
        self.addCleanup(lambda: (collector.over.set(), collector.shutdown(), collector.server_close()))
        self.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}/base/"
        return collector

    def test_metrics_and_attempts_reach_a_collector(self):
        collector = self.collector()
        self.env |= {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%2Cb", "OTEL_SERVICE_NAME": "training", "OTEL_RESOURCE_ATTRIBUTES": "team=vision"}
        done = self.run_job("--max-restarts", 1, "--restart-backoff", "0", sys.executable, self.script("worker.py", WORKER.replace("2.1", "1.1"), mode=0o644))
        self.assert_code(done, 0)
        self.assertEqual(done.err.count("OTEL"), 0, done.err)
        self.assertEqual({path for path, _, _ in collector.taken}, {"/base/v1/metrics", "/base/v1/traces"})
        for _, headers, _ in collector.taken:
            self.assertEqual((headers["Content-Type"], headers["api-key"]), ("application/json", "a,b"))

        def attributes(of):
            return {each["key"]: each["value"] for each in of["attributes"]}
        of, = [body for path, _, body in collector.taken if path.endswith("metrics")][-1]["resourceMetrics"]
        resource = attributes(of["resource"])
        self.assertEqual((resource["service.name"], resource["team"]), ({"stringValue": "training"}, {"stringValue": "vision"}))
        scope, = of["scopeMetrics"]
        self.assertEqual(scope["scope"]["name"], "ddplaunch")
        metrics = {metric["name"]: metric for metric in scope["metrics"]}
        self.assertEqual(metrics["ddplaunch_step"]["gauge"]["dataPoints"][0]["asInt"], "7")
        self.assertEqual(metrics["ddplaunch_loss"]["gauge"]["dataPoints"][0]["asDouble"], 1.75)
        attempts, = metrics["ddplaunch_attempts_total"]["sum"]["dataPoints"]
        self.assertEqual((attempts["asInt"], attributes(attempts)["job"]), ("2", {"stringValue": self.job}))
        states = {attributes(point)["state"]["stringValue"]: point["asInt"] for point in metrics["ddplaunch_job_state"]["gauge"]["dataPoints"]}
        self.assertEqual([state for state, value in states.items() if value == "1"], ["ended"])

        spans = [span for path, _, body in collector.taken if path.endswith("traces")
                 for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]
        self.assertEqual([span["name"] for span in spans], ["attempt 0", "attempt 1", f"job {self.job}"])
        first, second, job = spans
        self.assertRegex(first["traceId"], "^[0-9a-f]{32}$")
        self.assertEqual({span["traceId"] for span in spans}, {first["traceId"]})
        self.assertEqual((first["parentSpanId"], second["parentSpanId"], "parentSpanId" in job), (job["spanId"], job["spanId"], False))
        self.assertEqual((first["status"]["code"], second["status"], job["status"]), (2, {}, {}))

    def test_a_collector_that_fails_costs_the_job_nothing(self):
        dead = socket.socket()  # never listens
        self.addCleanup(dead.close)
        dead.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{dead.getsockname()[1]}"
        for endpoint, why in ((place, "Connection refused"), (500, "HTTP 500"), (0, None), ("http://no-such-host.invalid", "no-such-host"), ("https://a:1", "TLS is not known")):
            with self.subTest(endpoint):
                if isinstance(endpoint, int):
                    self.collector(endpoint)
                else:
                    self.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
                done = self.run_job("--label", "none", "sh", "-c", "echo hello; sleep 1.5")
                self.assertEqual((done.code, done.out), (0, "hello\n"), done)
                self.assertLess(done.seconds, 25)  # far below an export's 60 s: 1.5 s, and at most 1 s for the last metrics
                self.assertEqual(done.err.count("OTEL_EXPORTER_OTLP_ENDPOINT"), 1 if why else 0, done.err)
                if why:
                    self.assertIn(why, done.err)


if __name__ == "__main__":
    main()

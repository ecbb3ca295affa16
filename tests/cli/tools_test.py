#!/usr/bin/env python3
"""Tests what programs and agents read: `--json` of every verb fits its schema in configs/schema, and `ddplaunch mcp` serves the same.
DDP_CLIENTS_VENV names a venv with the client `mcp` (`./dev clients` makes one); without it the test with that client is skipped."""

import importlib.util
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.cli.operate_test import VerbTest
from tests.support.launch import DDPLAUNCH, SOURCE, is_running, main, wait_until

SCHEMAS = SOURCE / "configs/schema"
HAS_JSONSCHEMA = importlib.util.find_spec("jsonschema") is not None
STATELESS, WITH_HANDSHAKE = "2026-07-28", "2025-11-25"
META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}


def complete(schema, file):
    """Returns the schema without references, and with no key allowed that it does not name."""
    if isinstance(schema, list):
        return [complete(each, file) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name, _, place = schema["$ref"].partition("#")
        found = json.loads((SCHEMAS / (name or file)).read_text())
        for key in place.split("/")[1:]:
            found = found[key]
        return complete(found, name or file)
    found = {key: complete(value, file) for key, value in schema.items() if key not in ("$defs", "$id")}
    return {"additionalProperties": False, **found} if "properties" in found and isinstance(found.get("required"), list) else found


def schema_of(name):
    return complete(json.loads((SCHEMAS / f"{name}.schema.json").read_text()), f"{name}.schema.json")


class Schemas(VerbTest):
    def check(self, name, document):
        import jsonschema
        jsonschema.Draft202012Validator(schema_of(name)).validate(document)

    def verbs_with_json(self):
        names = re.findall(r"^  (\w+)  ", self.verb("--help").out, re.M)
        return {name for name in names if "--json" in self.verb(name, "--help").out}

    def test_each_verb_with_json_has_a_schema(self):
        verbs = self.verbs_with_json()
        self.assertLessEqual({"check", "hosts", "ps", "status", "logs", "attach", "stop", "wait", "exec", "stacks", "hang", "report", "clean"}, verbs)
        self.assertEqual({path.name.split(".")[0] for path in SCHEMAS.iterdir()}, verbs | {"events", "job", "config"})

    @unittest.skipUnless(HAS_JSONSCHEMA, "python3-jsonschema is not installed")
    def test_documents_of_a_failed_and_of_a_running_job(self):
        import jsonschema
        for path in SCHEMAS.glob("*.json"):
            schema = json.loads(path.read_text())
            jsonschema.validators.validator_for(schema).check_schema(schema)
        self.short_job("--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", "0", "sh", "-c", "[ $RANK = 0 ] && exec sleep 1000; echo no >&2; exit 3")
        ended = json.loads(self.verb("status", "--json").out)
        self.assertEqual(ended["failure"]["stderr_tail"], ["no"])
        for verb in ("status", "wait", "stop", "report"):
            self.check(verb, json.loads(self.verb(verb, "--json").out))
        for line in self.verb("logs", "--json", "--timestamps").out.splitlines():
            self.check("logs", json.loads(line))
        for line in (pathlib.Path(ended["directory"]) / "events.jsonl").read_text().splitlines():
            self.check("events", json.loads(line))
        self.short_job("--watch", "nan=fail", "sh", "-c", "echo loss nan; exec sleep 1000", job="watched")
        watched = json.loads(self.verb("report", "--json", "watched").out)
        self.assertEqual(watched["root_cause"]["what"], "misbehaved")
        self.check("report", watched)
        running = self.running_job("sh", "-c", "trap 'exit 0' TERM; echo hello; while :; do sleep 0.1; done")
        attached = subprocess.Popen([DDPLAUNCH, "attach", "--json", self.job], env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (attached.poll() is None and attached.kill(), attached.communicate()))
        self.assertIn("Ctrl-C", attached.stderr.readline())
        for verb, *words in (["ps", "-a"], ["status"], ["stacks"], ["hang"], ["exec", "--", "true"], ["stop"]):
            self.check(verb, json.loads(self.verb(verb, "--json", *words).out))
        running.communicate(timeout=60)
        lines = [json.loads(line) for line in attached.communicate(timeout=60)[0].splitlines()]
        self.assertEqual((lines[0]["format"], lines[-1]["state"]), (1, "ended"))
        for line in lines:
            self.check("attach", line)

    @unittest.skipUnless(HAS_JSONSCHEMA, "python3-jsonschema is not installed")
    def test_documents_about_hosts(self):
        history = self.dir / "history"
        history.mkdir()
        (history / f"{os.getuid()}.here.jsonl").write_text(
            json.dumps({"cause": "Xid 79", "format": 1, "hardware": True, "host": "gpu07", "job": "a", "time": int(os.stat(history).st_mtime)}) + "\n")
        for verb, *words in (["check"], ["hosts"], ["hosts", "--launcher", "local", "--host", "127.0.0.1:2,127.0.0.2"], ["hosts", "--history", "--host-history", history]):
            document = json.loads(self.verb(verb, "--json", *words).out)
            self.assertTrue(document["hosts"])
            self.check(verb, document)
        process = self.running_job("sleep", "1000")
        process.kill()
        process.wait()
        self.check("clean", json.loads(self.verb("clean", "--json").out))


class Mcp(VerbTest):
    """The server, by lines of JSON-RPC."""

    def setUp(self):
        super().setUp()
        self.server = subprocess.Popen([DDPLAUNCH, "mcp"], env=self.env, cwd=self.dir, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.end_server)
        self.requests = 0

    def end_server(self):
        self.server.kill()
        self.server.wait()
        for stream in (self.server.stdin, self.server.stdout, self.server.stderr):
            stream.close()

    def send(self, message):
        self.server.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        self.server.stdin.flush()

    def received(self):
        self.assertTrue(select.select([self.server.stdout], [], [], 60)[0], "no answer")
        return json.loads(self.server.stdout.readline())

    def ask(self, method, params=None, meta=META):
        self.requests += 1
        self.send({"jsonrpc": "2.0", "id": self.requests, "method": method, "params": {**(params or {}), **({"_meta": meta} if meta else {})}})
        answer = self.received()
        self.assertEqual((answer["jsonrpc"], answer["id"]), ("2.0", self.requests))
        return answer

    def call(self, name, **arguments):
        return self.ask("tools/call", {"name": name, "arguments": arguments})["result"]

    def test_both_revisions_are_negotiated(self):
        found = self.ask("server/discover")["result"]
        self.assertEqual((found["supportedVersions"], found["resultType"]), ([STATELESS, WITH_HANDSHAKE], "complete"))
        refused = self.ask("tools/list", meta={**META, "io.modelcontextprotocol/protocolVersion": "1900-01-01"})["error"]
        self.assertEqual((refused["code"], refused["data"]), (-32022, {"supported": [STATELESS, WITH_HANDSHAKE], "requested": "1900-01-01"}))
        self.assertEqual(self.ask("tools/list", meta=None)["error"]["code"], -32602)
        for asked in (WITH_HANDSHAKE, "2024-11-05", "2999-01-01"):
            offered = self.ask("initialize", {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}, meta=None)
            self.assertEqual((offered["result"]["protocolVersion"], offered["result"]["serverInfo"]["name"]), (WITH_HANDSHAKE, "ddplaunch"))
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        listed = self.ask("tools/list", meta=None)["result"]
        self.assertEqual(set(listed), {"tools"})
        self.assertEqual(self.ask("ping", meta=None)["result"], {})
        names = [tool["name"] for tool in listed["tools"]]
        self.assertEqual(names, ["jobs", "status", "failures", "logs", "stacks", "hang", "report", "check"])

    def test_what_is_no_request_is_refused_and_the_server_goes_on(self):
        for message, code in ((b"garbage\n", -32700), (b"\xff\xfe\n", -32700), (b'{"a": "' + b"x" * 200_000 + b'"}\n', -32700), (b"[" * 30_000 + b"]" * 30_000 + b"\n", -32600), (b"[]\n", -32600), (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600),
                              (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}\n', -32600), (b'{"id":1,"method":"ping"}\n', -32600)):
            self.send(message)
            answer = self.received()
            self.assertEqual((answer["id"], answer["error"]["code"]), (None, code), message[:50])
        for quiet in (b"\n", b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[[]]}}\n', b'{"jsonrpc":"2.0","method":"nothing","params":[]}\n',
                      b'{"jsonrpc":"2.0","id":7,"result":{}}\n'):
            self.send(quiet)
        self.assertEqual(self.ask("prompts/list")["error"]["code"], -32601)
        self.assertEqual(self.ask("tools/call", {"name": "stop"})["error"]["code"], -32602)
        for name, arguments, text in (("status", {"jobs": 1}, "no such argument: jobs"), ("logs", {"rank": "x"}, "rank is no integer"),
                                      ("status", {"job": "--help"}, "job is no id"),
                                      ("status", {}, "there is no job of yours on this machine")):
            result = self.call(name, **arguments)
            self.assertTrue(result["isError"])
            self.assertIn(text, result["content"][0]["text"])
        self.server.stdin.close()
        self.assertEqual((self.server.wait(timeout=60), self.server.stderr.read()), (0, b""))

    def test_no_tool_runs_a_command(self):
        made, command = self.dir / "made", self.script("command.sh", f"#!/bin/sh\ntouch {self.dir}/made\nexec \"$@\"\n")
        hosts = self.dir / "hosts"
        hosts.write_text(f"localhost setup={command}\n")
        for arguments, text in (({"host": f"localhost wrapper={command}"}, "host has keys"), ({"host": f"localhost\tsetup={command}"}, "host has keys"),
                                ({"host": "gpu01, gpu02 slots"}, "host has keys"), ({"host": "gpu01, gpu02,"}, "a host is missing"),
                                ({"hostfile": str(hosts)}, "no such argument: hostfile")):
            result = self.call("check", **arguments)
            self.assertEqual((result["isError"], text in result["content"][0]["text"]), (True, True), result)
        self.assertFalse(made.exists())
        self.short_job("echo", "aaa")
        for pattern in ("((a{1,255}){1,255}){1,255}", "a{30000}", "a{1,}{9999}"):
            result = self.call("logs", grep=pattern)
            self.assertIn("more than 10000 characters when its bounds {} are written out", result["content"][0]["text"])
        self.assertEqual(self.call("logs", rank=0, grep="^(a{1,2}){1,60}$")["content"][0]["text"], "aaa\n")

    @unittest.skipUnless(HAS_JSONSCHEMA, "python3-jsonschema is not installed")
    def test_tools_return_what_the_verbs_print(self):
        import jsonschema
        self.short_job("sh", "-c", "seq 60; echo no >&2; exit 3")
        schemas = {tool["name"]: tool.get("outputSchema") for tool in self.ask("tools/list")["result"]["tools"]}
        self.assertIsNone(schemas.pop("logs"))
        for tool, verb in (("jobs", ["ps", "--all"]), ("status", ["status"]), ("report", ["report"]), ("check", ["check"])):
            result = self.call(tool, **({"all": True} if tool == "jobs" else {}))
            document = result["structuredContent"]
            printed = json.loads(self.verb(verb[0], "--json", *verb[1:]).out)
            self.assertEqual(set(document), set(printed))
            self.assertEqual(json.loads(result["content"][0]["text"]), document)
            if tool != "check":  # free memory and times differ
                self.assertEqual(document, printed)
            jsonschema.validate(document, schemas[tool])
        failures = self.call("failures", job="short")["structuredContent"]
        jsonschema.validate(failures, schemas["failures"])
        self.assertEqual((failures["failure"]["text"], failures["failure"]["stderr_tail"]), ("rank 0 on localhost exited 3", ["no"]))
        lines = self.call("logs", stream="stdout")["content"][0]["text"].splitlines()
        self.assertEqual((len(lines), lines[-1]), (50, self.verb("logs", "--stream", "stdout").out.splitlines()[-1]))
        self.assertEqual(self.call("logs", rank=0, grep="^5.$", tail=1)["content"][0]["text"], "59\n")
        refused = self.call("logs", grep="(")
        self.assertTrue(refused["isError"])
        self.assertIn("--grep", refused["content"][0]["text"])
        self.assertIn("had ended before", self.call("stacks")["content"][0]["text"])
        self.running_job("sh", "-c", f"echo $PPID > {self.dir}/agent; exec sleep 1000")
        jsonschema.validate(self.call("stacks", rank=0)["structuredContent"], schemas["stacks"])

    def test_a_call_can_be_cancelled_and_holds_no_other(self):
        agent = self.dir / "agent"
        self.running_job("sh", "-c", f"echo $PPID > {agent}.new; mv {agent}.new {agent}; exec sleep 1000", options=["--node-timeout", "1m"])
        self.assertTrue(wait_until(agent.exists))
        os.kill(int(agent.read_text()), signal.SIGSTOP)
        self.addCleanup(os.kill, int(agent.read_text()), signal.SIGCONT)

        def children():
            return pathlib.Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        self.send({"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": {"_meta": META, "name": "stacks", "arguments": {}}})
        self.assertTrue(wait_until(children))
        self.send({"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": {"_meta": META, "name": "stacks"}})
        self.assertEqual(self.received()["error"]["code"], -32600)
        self.assertEqual(self.call("status")["structuredContent"]["state"], "running")
        pid = int(children()[0])
        self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "slow"}})
        self.assertTrue(wait_until(lambda: not is_running(pid)))
        self.assertEqual(self.ask("ping")["result"]["resultType"], "complete")  # no answer of the cancelled call came before
        for number in range(9):
            self.send({"jsonrpc": "2.0", "id": f"slow{number}", "method": "tools/call", "params": {"_meta": META, "name": "stacks"}})
        refused = self.received()
        self.assertEqual((refused["id"], refused["result"]["isError"]), ("slow8", True))
        self.server.stdin.close()
        self.assertEqual(self.server.wait(timeout=60), 0)

    def test_a_client_of_the_registry(self):
        python = f"{os.environ.get('DDP_CLIENTS_VENV', '')}/bin/python"
        if subprocess.run([python, "-c", "import mcp_types"], capture_output=True).returncode if os.access(python, os.X_OK) else True:
            self.skipTest("DDP_CLIENTS_VENV names no venv with the package mcp (./dev clients makes one)")
        self.short_job("sh", "-c", "echo no >&2; exit 3")
        client = self.script("client.py", CLIENT, mode=0o644)
        for mode, revision in (("auto", STATELESS), ("legacy", WITH_HANDSHAKE)):
            done = subprocess.run([python, client, mode, DDPLAUNCH], env=self.env, text=True, capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (0, f"{revision} rank 0 on localhost exited 3\n"), done.stderr)


CLIENT = """
import asyncio, os, sys
from mcp import Client, StdioServerParameters, stdio_client

async def main(mode, program):
    async with Client(stdio_client(StdioServerParameters(command=program, args=["mcp"], env=dict(os.environ))), mode=mode) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert {"jobs", "status", "failures", "logs", "stacks", "hang", "report", "check"} == tools, tools
        for name in ("jobs", "status", "report", "check"):
            result = await client.call_tool(name, {"all": True} if name == "jobs" else {})
            assert not result.is_error and result.structured_content["format"] == 1, result
        logs = await client.call_tool("logs", {"stream": "stderr"})
        assert logs.content[0].text.endswith("no\\n"), logs
        failed = await client.call_tool("failures", {"job": "short"})
        print(client.protocol_version, failed.structured_content["failure"]["text"])

asyncio.run(main(*sys.argv[1:]))
"""


if __name__ == "__main__":
    main()

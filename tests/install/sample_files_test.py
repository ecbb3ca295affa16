#!/usr/bin/env python3
"""Checks the sample files of configs/ and .github/: they can be read, their command lines are valid, and the commands and files
that they name exist."""
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.launch import DDPLAUNCH, SOURCE, LaunchTest, main

CONFIGS = SOURCE / "configs"
WORKFLOWS = sorted((SOURCE / ".github/workflows").glob("*.yml"))
HAS_YAML = importlib.util.find_spec("yaml") is not None
HAS_JSONSCHEMA = importlib.util.find_spec("jsonschema") is not None


def documents(path):
    import yaml
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


class Samples(LaunchTest):
    def plan(self, *args, **env):
        done = subprocess.run([DDPLAUNCH, "--dry-run", *args], cwd=SOURCE, env={**self.env, **env}, text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_job_files(self):
        files = sorted((CONFIGS / "jobs").glob("*.yaml"))
        self.assertGreaterEqual(len(files), 3)
        for path in files:
            with self.subTest(path.name):
                self.assertIn(f"{path}:", self.plan("--job-file", str(path)))
                schema = re.search(r"\$schema=(\S+)", path.read_text())[1]
                schema = json.loads((path.parent / schema).read_text())
                if HAS_YAML and HAS_JSONSCHEMA:
                    import jsonschema
                    jsonschema.validate(documents(path)[0], schema)

    def test_hostfiles(self):
        for path in sorted(CONFIGS.glob("hostfile.*")):
            with self.subTest(path.name):
                self.assertIn("world size", self.plan("--hostfile", str(path), "train"))

    def test_profiles_of_nccl(self):
        files = sorted((CONFIGS / "nccl").glob("*.env"))
        self.assertEqual([path.stem for path in files], ["ethernet", "infiniband"])
        for path in files:
            with self.subTest(path.name):
                text = self.plan("--env-file", str(path), "train.py")
                names = re.search(r"set for the workers:((?:\s+NCCL_\w+)+)", text)[1].split()
                self.assertEqual(sorted(names), sorted(re.findall(r"^(\w+)=", path.read_text(), re.M)))

    def test_batch_script(self):
        """bash can read it, and in a job of Slurm its command line is valid."""
        script = CONFIGS / "slurm/job.sbatch"
        subprocess.run(["bash", "-n", script], check=True)
        stub = self.script("ddplaunch", f'#!/bin/sh\nexec {shlex.quote(DDPLAUNCH)} --dry-run "$@"\n')
        env = {**self.env, "PATH": f"{stub.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[01-02]",
               "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "8"}
        done = subprocess.run(["bash", script, "--lr", "0.1"], cwd=self.dir, env=env, text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("job slurm-7,", done.stdout)
        self.assertIn("world size 16", done.stdout)
        self.assertIn("train.py --lr 0.1", done.stdout)

    @unittest.skipUnless(HAS_YAML, "python3-yaml is not installed")
    def test_manifests_of_kubernetes(self):
        services, pods = {}, {}
        for path in sorted((CONFIGS / "kubernetes").glob("*.yaml")):
            for document in documents(path):
                if document["kind"] == "Service":
                    services[document["metadata"]["name"]] = document["spec"]
                else:
                    pods[document["kind"]] = document["spec"]
        for spec in services.values():
            self.assertEqual(spec["clusterIP"], "None")
        job = pods["Job"]["template"]["spec"]
        self.assertIn(job["subdomain"], services)
        self.assertIn(pods["StatefulSet"]["serviceName"], services)
        for spec in (job, pods["StatefulSet"]["template"]["spec"]):
            mounts = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
            self.assertEqual(mounts, {volume["name"] for volume in spec["volumes"]})
        container = job["containers"][0]
        self.assertEqual(container["command"], ["ddplaunch"])
        env = {each["name"]: each.get("value", "1") for each in container["env"]}
        self.assertEqual(sorted(env), ["MASTER_ADDR", "NODE_RANK"])
        text = self.plan(*container["args"], **env)
        self.assertIn("one ddplaunch on each node; they connect to train-0.train port 29500", text)
        daemon = pods["StatefulSet"]["template"]["spec"]["containers"][0]
        self.assertEqual(daemon["command"], ["ddplaunchd"])
        self.assertEqual(str(daemon["ports"][0]["containerPort"]), daemon["args"][daemon["args"].index("--listen") + 1])
        command = re.search(r"^# +ddplaunch (--launcher daemon .*)$", (CONFIGS / "kubernetes/statefulset.yaml").read_text(), re.M)[1]
        self.assertIn("through the daemons", self.plan(*shlex.split(command)))

    @unittest.skipUnless(HAS_YAML, "python3-yaml is not installed")
    def test_workflows_and_issue_forms_can_be_read(self):
        self.assertEqual([path.stem for path in WORKFLOWS], ["ci", "release"])
        for path in WORKFLOWS:
            jobs = documents(path)[0]["jobs"]
            for name, job in jobs.items():
                with self.subTest(path.name, job=name):
                    self.assertIn("timeout-minutes", job)
                    self.assertLessEqual({job.get("needs", name)}, set(jobs))
                    for step in job["steps"]:
                        self.assertEqual(len({"run", "uses"} & set(step)), 1, step)
                        self.assertRegex(step.get("uses", "a@v1"), r"@v\d+$")
        images = documents(WORKFLOWS[0])[0]["jobs"]["test"]["strategy"]["matrix"]["image"]
        self.assertEqual(images, ["debian:12", "debian:13", "ubuntu:24.04"])
        for path in (SOURCE / ".github/ISSUE_TEMPLATE").glob("*.yml"):
            if path.stem != "config":
                self.assertLessEqual({"name", "description", "body"}, set(documents(path)[0]))

    def test_commands_of_dev_that_files_name_exist(self):
        dev = (SOURCE / "dev").read_text()
        commands = re.search(r"^  (setup \|.*)\)$", dev, re.M)[1].split(" | ")
        found = {}
        for path in [*WORKFLOWS, *(CONFIGS / "docker").iterdir()]:
            for command in re.findall(r"(?:run:|RUN) \./dev (\w+)", path.read_text()):
                found.setdefault(command, []).append(path.name)
        self.assertLessEqual({"test", "build", "package"}, set(found))
        self.assertEqual({command: files for command, files in found.items() if command not in commands}, {})

    def test_folders_of_dev_that_files_name_exist(self):
        dev = (SOURCE / "dev").read_text()
        for path in [*WORKFLOWS, *(CONFIGS / "docker").iterdir()]:
            for folder in re.findall(r"\bbuild/\w+", path.read_text()):
                if folder != "build/release":
                    self.assertRegex(dev, rf"{folder}\b", path.name)

    def test_files_that_samples_name_exist(self):
        named = 0
        for path in [path for path in CONFIGS.rglob("*") if path.is_file() and path.parent.name != "completion"]:
            for name in re.findall(r"\b(?:docs|configs)/[\w./-]+\w", path.read_text()):
                self.assertTrue((SOURCE / name).exists(), f"{path} names {name}")
                named += 1
        self.assertGreater(named, 8)

    def test_images(self):
        """Each stage begins with FROM, and a copy from another stage names that stage."""
        for path in sorted((CONFIGS / "docker").iterdir()):
            text = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", path.read_text(), flags=re.M))
            lines = [line.split() for line in text.splitlines() if line.strip()]
            self.assertLessEqual({line[0] for line in lines}, {"ARG", "FROM", "COPY", "WORKDIR", "RUN", "ENV", "ENTRYPOINT"}, path.name)
            stages = {line[3] for line in lines if line[0] == "FROM" and "AS" in line}
            used = {name for name in re.findall(r"--from=(\w+)", text)}
            self.assertEqual(used - stages, set())
            for line in lines:
                if line[0] == "RUN":
                    subprocess.run(["sh", "-n", "-c", " ".join(line[1:])], check=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Presses the completion key in a real shell, with the files of configs/completion.

usage: completion_test.py bash|bash_package|zsh|fish
"""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import tty
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "configs/completion"
PACKAGE = pathlib.Path("/usr/share/bash-completion/bash_completion")
HOSTS = "gpu01 slots=8  # a comment\n# gpu99\nalice@gpu02:4\nlogin\ngpu[03-04]\n$(touch${IFS}executed)\n"

# Keys: Ctrl-X q inserts all completions into the line, Ctrl-X p prints the line between marks, Ctrl-U empties it.
BASH = r"""
PS1= PS2=
bind 'set enable-bracketed-paste off'
bind '"\C-xq": insert-completions'
bind -x '"\C-xp": printf "<<%s>>\n" "$READLINE_LINE"'
"""
ZSH = r"""
PS1= PS2=
unsetopt prompt_cr prompt_sp zle_bracketed_paste
fpath=($PWD $fpath)
autoload -U compinit && compinit -u -D
zstyle ':completion:*' completer _all_matches _complete
zstyle ':completion:*' insert true
zstyle ':completion:*' old-matches false
bindkey '^Xq' complete-word
print_line() { print -r -- "<<$BUFFER>>" }
zle -N print_line
bindkey '^Xp' print_line
bindkey '^U' kill-whole-line
"""


class Terminal:
    """A shell in a pseudo-terminal, started with the file .zshrc in `folder`."""

    def __init__(self, command, setup, folder):
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "ZDOTDIR": folder, "TERM": "dumb", "LC_ALL": "C.UTF-8",
                       "XDG_STATE_HOME": folder + "/state", "XDG_DATA_HOME": folder + "/share"}
        pathlib.Path(folder, ".zshrc").write_text(setup + "\nprintf '<<%s>>\\n' ready\n", encoding="utf-8")
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            tty.setraw(0)  # keys that are sent before the shell reads them stay as they are
            os.chdir(folder)
            os.execvpe(command[0], command, environment)
        self.read = b""
        self.answer()

    def answer(self):
        """Returns what the shell prints next between the marks."""
        while not (found := re.search(rb"<<([^\r\n]*)>>", self.read)):
            if not select.select([self.terminal], [], [], 50)[0]:
                raise AssertionError(f"no answer behind {self.read!r}")
            self.read += os.read(self.terminal, 65536)
        self.read = self.read[found.end():]
        return found[1].decode()

    def completed(self, line):
        os.write(self.terminal, line.encode() + b"\x18q\x18p\x15")
        return self.answer()

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


def bash(folder):
    return Terminal(["bash", "--noprofile", "--rcfile", ".zshrc", "-i"], f"{BASH}\nsource {FILES}/ddplaunch.bash", folder)


def bash_with_package(folder):
    """The package finds the file by its name when the command is completed first."""
    place = pathlib.Path(folder, "share/bash-completion/completions")
    place.mkdir(parents=True)
    for name in ("ddplaunch", "ddplaunchd", "train"):
        shutil.copy(FILES / "ddplaunch.bash", place / name)
    return Terminal(["bash", "--noprofile", "--rcfile", ".zshrc", "-i"], f"{BASH}\nsource {PACKAGE}", folder)


def zsh(folder):
    shutil.copy(FILES / "_ddplaunch", folder)
    return Terminal(["zsh", "-d", "-i"], ZSH, folder)


class Fish:
    def __init__(self, folder):
        self.environment = {"PATH": os.environ["PATH"], "HOME": folder, "XDG_STATE_HOME": folder + "/state", "LC_ALL": "C.UTF-8"}
        self.folder = folder

    def completed(self, line):
        commands = f"source {FILES}/ddplaunch.fish; complete -C {quoted_for_fish(line)}"
        text = subprocess.run(["fish", "--no-config", "-c", commands], cwd=self.folder, env=self.environment, check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        return line.rpartition(" ")[0] + " " + " ".join(row.split("\t")[0] for row in text.splitlines())

    def close(self):
        pass


def quoted_for_fish(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS = {"bash": bash, "bash_package": bash_with_package, "zsh": zsh, "fish": Fish}
KIND = sys.argv.pop() if sys.argv[-1] in SHELLS else sys.exit(__doc__)


def fish_matches_within():
    """Fish also offers words that contain the typed letters, since version 4."""
    version = subprocess.run(["fish", "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"\d+", version)[0]) >= 4


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory()) if hasattr(cls, "enterClassContext") else tempfile.mkdtemp()
        root = pathlib.Path(cls.folder)
        (root / "my_hosts").write_text(HOSTS, encoding="utf-8")
        (root / "my other nodes").write_text("gpu01 slots=2\ngpu02 slots=1\n", encoding="utf-8")
        (root / "script.py").touch()
        (root / "my_data").mkdir()
        for job in ("run7", "run8", "$(touch${IFS}executed)"):
            (root / "state/ddplaunch/jobs" / job).mkdir(parents=True)
        cls.shell = SHELLS[KIND](cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.shell.close()
        shutil.rmtree(cls.folder, ignore_errors=True)

    def offers(self, line):
        """Returns the completions of the last word, without "--opt=" or other items before them."""
        text = self.shell.completed(line)
        before = line.rpartition(" ")[0]
        self.assertTrue(text.startswith(before), text)
        words = text[len(before):].split()
        return {re.sub(r"^(--[\w-]+=|.*@)(?=.)", "", word).rstrip("/=") for word in words} - {line.rpartition(" ")[2]}

    def check(self, line, *offered, absent=()):
        with self.subTest(line):
            found = self.offers(line)
            self.assertEqual((set(offered) - found, set(absent) & found), (set(), set()), f"offered: {sorted(found)}")

    def exactly(self, line, *offered):
        with self.subTest(line):
            found = self.offers(line)
            if KIND == "fish" and fish_matches_within():
                typed = re.split("[ =@,]", line)[-1]
                found = {word for word in found if word.startswith(typed)}
            self.assertEqual(found, set(offered))

    def test_options(self):
        self.exactly("ddplaunch --la", "--launcher", "--label")
        self.check("ddplaunch --nproc_per_node 2 --ho", "--host", "--hostfile", "--hosts-from")
        self.check("ddplaunch -", "--hostfile", "-m", "-t", "--tee", "--version", absent=["--epochs", "--listen"])
        self.check("ddplaunch check --hostfile my_hosts --de", "--deep")
        self.check("ddplaunch logs --f", "--follow", "--failed", absent=["--fence"])
        self.check("ddplaunch --num_gpus 2 --rdzv-backend c10d --la", "--label", absent=["--epochs"])
        self.check("ddplaunchd --", "--listen", "--token-file", absent=["--hostfile"])

    def test_an_option_that_counts_once_is_not_offered_again(self):
        if KIND == "fish":
            self.skipTest("fish offers every option again")
        self.check("ddplaunch --env A=1 --label x --", "--env", "--launcher", absent=["--label"])

    def test_words_of_a_value(self):
        self.exactly("ddplaunch --launcher ", "daemon", "local", "slurm", "ssh")
        self.exactly("ddplaunch --launcher s", "slurm", "ssh")
        self.exactly("ddplaunch --launcher=s", "slurm", "ssh")
        self.exactly("ddplaunch --nproc-per-node ", "auto", "cpu", "gpu")
        self.exactly("ddplaunch --host gpu01:8,gpu02:8 --store ", "agent", "worker")

    def test_files(self):
        self.check("ddplaunch --hostfile ", "my_hosts")
        self.check("ddplaunch --machinefile my_h", "my_hosts")
        self.check("ddplaunch --hostfile=my_h", "my_hosts")
        self.exactly("ddplaunch --log-dir my_", "my_data")
        self.check("ddplaunchd --token-file my_h", "my_hosts")
        self.check("ddplaunchd --token_file my_h", "my_hosts")
        self.exactly("ddplaunch --log_dir my_", "my_data")
        self.exactly("ddplaunch --max-restarts ")

    def test_jobs(self):
        self.check("ddplaunch --job-id ", "run7", "run8")
        self.check("ddplaunch stop ", "run7", "run8", absent=["train"])
        self.assertFalse(pathlib.Path(self.folder, "executed").exists())

    def test_ranks(self):
        self.exactly("ddplaunch --nproc-per-node 3 --show-ranks ", "0", "1", "2")
        self.exactly("ddplaunch --nproc_per_node=3 --show-ranks ", "0", "1", "2")
        self.exactly("ddplaunch --nproc-per-node 3 --show-ranks 0,", "0,0", "0,1", "0,2")
        self.exactly("ddplaunch --show-ranks ")
        self.exactly("ddplaunch --nproc-per-node gpu --show-ranks ")

    def test_ranks_of_all_nodes(self):
        self.exactly("ddplaunch --nnodes 2 --nproc-per-node 2 --show-ranks ", "0", "1", "2", "3")
        self.exactly("ddplaunch --nodes=1:3 --num_gpus 1 --show-ranks ", "0", "1", "2")
        for option in ("-n", "-np", "--num_processes"):
            self.exactly(f"ddplaunch {option} 2 --show-ranks ", "0", "1")
        self.exactly("ddplaunch --host gpu01:2,gpu[02-03]:1 --show-ranks ", "0", "1", "2", "3")
        self.exactly("ddplaunch --host gpu01:2,gpu[02-03]:1 --nnodes 2 --show-ranks ", "0", "1", "2")
        self.exactly("ddplaunch --host a,b --nproc-per-node 2 --show-ranks ", "0", "1", "2", "3")
        self.exactly("ddplaunch --hostfile my_hosts --show-ranks ", *map(str, range(8 + 4 + 1 + 2)))
        self.exactly("ddplaunch --hostfile 'my other nodes' --show-ranks ", "0", "1", "2")

    def test_hosts_of_the_hostfile(self):
        hosts = ("gpu01", "gpu02", "login", "gpu03", "gpu04")
        self.exactly("ddplaunch --hostfile my_hosts --include ", *hosts)
        self.exactly("ddplaunch --hostfile=my_hosts --exclude gpu01@", *hosts)
        self.exactly("ddplaunch --machinefile my_hosts --include ", *hosts)
        for name in ("'my other nodes'", '"my other nodes"', "my\\ other\\ nodes"):
            self.exactly(f"ddplaunch --hostfile {name} --include ", "gpu01", "gpu02")

    def test_hosts_of_the_command_line(self):
        self.exactly("ddplaunch --host gpu01:8,gpu[02-03]:8 --include ", "gpu01", "gpu02", "gpu03")
        self.exactly("ddplaunch --host=gpu01 --host alice@gpu02:4 --include ", "gpu01", "gpu02")
        self.exactly("ddplaunch --hosts gpu01,gpu02 --exclude ", "gpu01", "gpu02")
        self.assertFalse(pathlib.Path(self.folder, "executed").exists())

    def test_the_text_before_a_completed_word_stays(self):
        for line, completed in (("--include gpu01@lo", "--include gpu01@login"), ("--include gpu01:0,1@lo", "--include gpu01:0,1@login"),
                                ("--include=gpu01@lo", "--include=gpu01@login"), ("--launcher=da", "--launcher=daemon")):
            with self.subTest(line):
                line, completed = f"ddplaunch --hostfile my_hosts {line}", f"ddplaunch --hostfile my_hosts {completed}"
                self.assertEqual(self.shell.completed(line).rstrip(), completed)

    def test_words_beside_files(self):
        self.check("ddplaunch train --data sy", "synthetic")
        self.check("ddplaunch train --resume au", "auto")
        self.check("ddplaunch --hosts-from sl", "slurm")

    def test_the_worker(self):
        self.check("ddplaunch ", "check", "hosts", "ps", "run", "wait", "train", "script.py")
        self.check("ddplaunch run s", "script.py")
        self.check("ddplaunch run --job-i", "--job-id")
        self.check("ddplaunch --quiet ", "train", "script.py", absent=["check", "hosts"])
        self.check("ddplaunch -- s", "script.py")
        self.check("ddplaunch check tr", "train")

    def test_arguments_of_the_worker(self):
        self.check("ddplaunch --env A=b:c -m script --", absent=["--launcher", "--epochs"])
        self.check("ddplaunch --setup 'module load x' ./script.py s", "script.py")
        self.check("ddplaunch -- script.py --", absent=["--launcher"])

    def test_the_bundled_trainer(self):
        self.check("ddplaunch --nproc-per-node 2 train --", "--data", "--model", absent=["--launcher", "--minbytes"])
        self.exactly("ddplaunch train --model ", "auto", "convnet", "mlp")
        self.check("ddplaunch train ", "bench", "health")
        self.check("ddplaunch train bench ", "allreduce", "pairs")
        self.check("ddplaunch train bench allreduce --", "--minbytes", absent=["--epochs", "--launcher"])
        self.check("ddplaunch check train health --m", "--memory")
        if KIND != "fish":  # which offers no options behind "--"
            self.check("ddplaunch -- train --mod", "--model")

    def test_the_trainer_alone(self):
        for program in ("train", "/opt/ddplaunch/train"):
            self.check(f"{program} --", "--data", "--model", "--version", absent=["--launcher", "--minbytes"])
            self.exactly(f"{program} --model ", "auto", "convnet", "mlp")
            self.check(f"{program} ", "bench", "health")
            self.check(f"{program} bench ", "allreduce", "pairs")
            self.check(f"{program} bench allreduce --", "--minbytes", absent=["--epochs", "--launcher"])
            self.check(f"{program} health --m", "--memory")


if __name__ == "__main__":
    missing = not PACKAGE.exists() if KIND == "bash_package" else shutil.which(KIND) is None
    if missing:
        print(f"skipped: {PACKAGE if KIND == 'bash_package' else KIND} is not installed")
        sys.exit(77)
    unittest.main(verbosity=2)

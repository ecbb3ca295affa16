#include "launcher/report/exit_report.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "launcher/report/root_cause.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

Failure exited(int rank, const std::string& host, int status, int at_ms) {
  Failure failure;
  failure.kind = Failure::Kind::kExited;
  failure.host = host;
  failure.rank = rank;
  failure.local_rank = rank % 4;
  failure.pid = 4000 + rank;
  failure.status = status;
  failure.happened = {std::chrono::milliseconds(at_ms), std::chrono::milliseconds(at_ms)};
  return failure;
}

Failure signaled(int rank, const std::string& host, int signal, int at_ms, bool ours = false) {
  Failure failure = exited(rank, host, 0, at_ms);
  failure.kind = Failure::Kind::kSignaled;
  failure.signal = signal;
  failure.stopped_by_us = ours;
  return failure;
}

Failure node_lost(const std::string& host, int at_ms) {
  Failure failure;
  failure.kind = Failure::Kind::kNode;
  failure.host = host;
  failure.error = {ErrorCode::kLinkLost, "its control link closed", 0};
  failure.happened = {std::chrono::milliseconds(at_ms), std::chrono::milliseconds(at_ms)};
  return failure;
}

bool shows(const JobEnd& end, const std::string& text) {
  return make_exit_report(end).text.find(text) != std::string::npos;
}

// No default: the compiler then demands each new kind here, and the loop below its row.
std::string kind_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage: return "Usage";
    case ErrorCode::kUnreachable: return "Unreachable";
    case ErrorCode::kTimeout: return "Timeout";
    case ErrorCode::kAgentMissing: return "AgentMissing";
    case ErrorCode::kAgentMismatch: return "AgentMismatch";
    case ErrorCode::kRefused: return "Refused";
    case ErrorCode::kExec: return "Exec";
    case ErrorCode::kLinkLost: return "LinkLost";
    case ErrorCode::kProtocol: return "Protocol";
    case ErrorCode::kCancelled: return "Cancelled";
    case ErrorCode::kSystem: return "System";
    case ErrorCode::kInternal: return "Internal";
    case ErrorCode::kHung: return "Hung";
  }
  return "";
}

TEST_CASE("the report has the root cause, its stderr, merged consequences and a last line") {
  JobEnd end;
  for (int rank = 0; rank < 4; ++rank)
    end.failures.push_back(signaled(rank, "gpu01", SIGTERM, 12'500, true));
  end.failures.push_back(signaled(4, "gpu02", SIGABRT, 12'400));
  end.failures[4].core_dumped = true;
  Failure root = exited(5, "gpu02", 3, 12'345);
  root.last_stderr = {"Traceback (most recent call last):", "ValueError: boom"};
  root.stderr_path = "/jobs/j1/attempt_0/rank_00005.stderr";
  end.failures.push_back(root);
  end.failures.push_back(signaled(6, "gpu02", SIGTERM, 12'500, true));
  end.failures.push_back(node_lost("gpu03", 13'000));

  const ExitReport report = make_exit_report(end);
  CHECK(report.exit_code == 3);
  CHECK(report.text ==
        "ddplaunch: the job failed after 12.3 s\n"
        "  root cause: rank 5 (local rank 1) on gpu02, pid 4005: exited 3\n"
        "  the last lines of its stderr:\n"
        "    | Traceback (most recent call last):\n"
        "    | ValueError: boom\n"
        "  all of its stderr: /jobs/j1/attempt_0/rank_00005.stderr\n"
        "  consequences:\n"
        "    rank 4 on gpu02: killed by SIGABRT (core dumped)\n"
        "    ranks 0-3,6 on gpu01 and gpu02: stopped by ddplaunch, SIGTERM\n"
        "    node gpu03: its control link closed\n"
        "ddplaunch: exit 3: rank 5 on gpu02 exited 3\n");
}

TEST_CASE("the report covers a signal, a program that cannot be executed, and a lost node") {
  JobEnd killed;
  killed.failures = {signaled(0, "a", SIGSEGV, 1'000)};
  CHECK(make_exit_report(killed).exit_code == 139);
  CHECK(
      make_exit_report(killed).text ==
      "ddplaunch: the job failed after 1.0 s\n"
      "  root cause: rank 0 (local rank 0) on a, pid 4000: killed by SIGSEGV\n"
      "    SIGSEGV: it used memory that is not its own: a bug in native code (an extension, a library), or a "
      "stack overflow\n"
      "ddplaunch: exit 139: rank 0 on a killed by SIGSEGV\n");

  JobEnd missing;
  Failure exec = exited(2, "b", 0, 50);
  exec.kind = Failure::Kind::kExec;
  exec.pid = 0;
  exec.error = {ErrorCode::kExec, "execute nosuch: No such file or directory", ENOENT};
  missing.failures = {exec};
  CHECK(make_exit_report(missing).exit_code == 127);
  CHECK(make_exit_report(missing).text ==
        "ddplaunch: the job failed after 50 ms\n"
        "  root cause: rank 2 (local rank 2) on b: could not be started: execute nosuch: No such file or "
        "directory\n"
        "ddplaunch: exit 127: rank 2 on b could not be started: execute nosuch: No such file or directory\n");
  missing.failures[0].error.sys = EACCES;
  CHECK(make_exit_report(missing).exit_code == 126);

  JobEnd lost;
  lost.failures = {node_lost("gpu09", 61'040), signaled(1, "gpu01", SIGTERM, 61'100, true)};
  CHECK(make_exit_report(lost).exit_code == 113);
  CHECK(make_exit_report(lost).text ==
        "ddplaunch: the job failed after 61.0 s\n"
        "  root cause: node gpu09: its control link closed\n"
        "  consequences:\n"
        "    rank 1 on gpu01: stopped by ddplaunch, SIGTERM\n"
        "ddplaunch: exit 113: node gpu09: its control link closed\n");
  lost.failures[0].error.text = "no heartbeat for 4.6 s; the machine, its network, or the agent hangs";
  CHECK(make_exit_report(lost).text ==
        "ddplaunch: the job failed after 61.0 s\n"
        "  root cause: node gpu09: no heartbeat for 4.6 s; the machine, its network, or the agent hangs\n"
        "  consequences:\n"
        "    rank 1 on gpu01: stopped by ddplaunch, SIGTERM\n"
        "ddplaunch: exit 113: node gpu09: no heartbeat for 4.6 s\n");
}

TEST_CASE("nodes that did not get ready are listed one by one, equal reasons together") {
  JobEnd end;
  for (const char* host : {"gpu01", "gpu02", "gpu03", "gpu04"}) {
    Failure failure = node_lost(host, 900);
    failure.error = {ErrorCode::kUnreachable, "connect to port 22: Connection refused", 0};
    end.failures.push_back(failure);
  }
  end.failures[3].error.text = "its host key is not known\nAccept it with: ssh gpu04";
  CHECK(make_exit_report(end).text ==
        "ddplaunch: the job did not start: failed after 900 ms\n"
        "  other nodes:\n"
        "    node gpu04: its host key is not known\n"
        "      Accept it with: ssh gpu04\n"
        "ddplaunch: exit 111: nodes gpu[01-03]: connect to port 22: Connection refused\n");

  for (int i = 0; i < 40; ++i) {
    Failure failure = end.failures[0];
    failure.host = "n" + std::to_string(i);
    failure.error.text = "reason " + std::to_string(i);
    end.failures.push_back(failure);
  }
  const auto text_of_first = [&end](std::size_t failures) {
    JobEnd first;
    first.failures.assign(end.failures.begin(), end.failures.begin() + static_cast<std::ptrdiff_t>(failures));
    return make_exit_report(first).text;
  };
  // The first three failures are the cause.
  CHECK(text_of_first(3 + 41).find("    and 25 more kinds of failures\n") != std::string::npos);
  CHECK(text_of_first(3 + 17).find("    and 1 more kind of failure\n") != std::string::npos);
  CHECK(text_of_first(3 + 17).find(": reason 15\n") == std::string::npos);
  CHECK(text_of_first(3 + 16).find(": reason 14\n") != std::string::npos);
  CHECK(text_of_first(3 + 16).find("    and ") == std::string::npos);
}

TEST_CASE("a hundred nodes that are lost together are one line") {
  JobEnd end;
  end.failures.push_back(exited(0, "login", 1, 10));
  for (int i = 100; i >= 1; --i) {
    Failure failure = node_lost("gpu" + std::to_string(i), 60'000 + i);
    failure.error.text = i % 2 == 0 ? "no heartbeat for 15 s; the network hangs"
                                    : "no heartbeat for 15.1 s; the network hangs";
    end.failures.push_back(failure);
  }
  const std::string text = make_exit_report(end).text;
  CHECK(text.find("    nodes gpu[1-100]: no heartbeat for 15.1 s; the network hangs\n") != std::string::npos);
  CHECK(text.find("more kind") == std::string::npos);
  end.failures[1].error.text = "the connection was lost: 10.0.0.100:22 broke";
  end.failures[2].error.text = "the connection was lost: 10.0.0.99:22 broke";
  CHECK(shows(end, "    nodes gpu[99-100]: the connection was lost: 10.0.0.…:22 broke\n"));
}

TEST_CASE("sixteen kinds of consequences are shown, and more are counted") {
  JobEnd end;
  end.failures.push_back(exited(0, "gpu01", 1, 10));
  for (int status = 2; status < 2 + 16; ++status)
    end.failures.push_back(exited(status, "gpu01", status, 20));
  CHECK_FALSE(shows(end, "    and "));
  end.failures.push_back(exited(40, "gpu01", 40, 20));
  CHECK(shows(end, "    and 1 more kind of failure\n"));
}

TEST_CASE(
    "nodes that did not get ready for one cause are one line, whatever identifies the host in its text") {
  JobEnd end;
  for (int i = 1; i <= 12; ++i) {
    const std::string number = std::to_string(i);
    Failure failure = node_lost((i < 10 ? "gpu0" : "gpu") + number, 900);
    failure.error = {ErrorCode::kUnreachable,
                     "unknown host key of 10.0.0." + number + ":22 (ssh-ed25519 SHA256:a" + number +
                         "b): no line for " + failure.host + " in /home/ann/.ssh/known_hosts; run \"ssh " +
                         failure.host + " true\"",
                     0};
    end.failures.push_back(failure);
  }
  const std::string why =
      "exit 111: nodes gpu[01-12]: unknown host key of 10.0.0.…:22 (ssh-ed25519 SHA256:a…b): no line for "
      "gpu… in /home/ann/.ssh/known_hosts; run \"ssh gpu… true\"\n";
  CHECK(make_exit_report(end).text ==
        "ddplaunch: the job did not start: failed after 900 ms\nddplaunch: " + why);

  // Different reasons stay apart, even if they differ in one word.
  end.failures.resize(2);
  end.failures[0].error.text = "ssh failed (exit status 255)";
  end.failures[1].error.text = "ssh failed (exit status 1)";
  CHECK(make_exit_report(end).text ==
        "ddplaunch: the job did not start: failed after 900 ms\n"
        "  other nodes:\n"
        "    node gpu02: ssh failed (exit status 1)\n"
        "ddplaunch: exit 111: node gpu01: ssh failed (exit status 255)\n");
  // The common ends of two words do not overlap.
  end.failures[0].host = "ab";
  end.failures[0].error.text = "no line for ab";
  end.failures[1].host = "aab";
  end.failures[1].error.text = "no line for aab";
  CHECK(make_exit_report(end).text.ends_with(": no line for a…b\n"));
  // A word loses its whole number, and may have no common end.
  const auto text_of_two = [&end](const std::string& first, const std::string& second) {
    end.failures[0].host = first;
    end.failures[0].error.text = "no line for " + first;
    end.failures[1].host = second;
    end.failures[1].error.text = "no line for " + second;
    return make_exit_report(end).text;
  };
  CHECK(text_of_two("gpu011", "gpu021").ends_with(": nodes gpu[011,021]: no line for gpu…\n"));
  CHECK(text_of_two("red", "blue").ends_with(": nodes blue,red: no line for …\n"));
  // The first word counts.
  end.failures[0].error.text = "ssh failed";
  end.failures[1].error.text = "srun failed";
  CHECK(shows(end, "  other nodes:\n    node blue: srun failed\n"));
  end.failures[0].host = "gpu01";
  // Further lines of the cause are printed before the last line.
  end.failures.resize(1);
  end.failures[0].error.text = "the login shell ended; its last lines:\nno such module";
  CHECK(make_exit_report(end).text ==
        "ddplaunch: the job did not start: failed after 900 ms\n"
        "  root cause: node gpu01: the login shell ended; its last lines:\n"
        "    no such module\n"
        "ddplaunch: exit 111: node gpu01: the login shell ended\n");
}

TEST_CASE("a rank that exited 0 before the failure is named") {
  JobEnd end;
  end.failures = {exited(0, "a", 5, 4300)};
  end.early = {{1, "b", {std::chrono::seconds(2), std::chrono::seconds(2)}},
               {2, "b", {std::chrono::milliseconds(4297), std::chrono::milliseconds(4301)}},  // perhaps later
               {3, "a", {std::chrono::seconds(5), std::chrono::seconds(5)}}};                 // later
  CHECK(shows(end, "  note: rank 1 on b exited 0, 2.3 s earlier\n"));
  end.early.push_back({0, "a", {std::chrono::seconds(1), std::chrono::seconds(1)}});
  CHECK(shows(end, "  note: ranks 0-1 on a and b exited 0, the first 3.3 s earlier\n"));
  end.early.clear();
  CHECK_FALSE(shows(end, "note:"));
}

TEST_CASE("the report of any end but a success says where the job's files are, once") {
  JobEnd end;
  end.job = "job run7: 2 nodes × 8 workers";
  end.job_dir = "/jobs/run7";
  CHECK(make_exit_report(end).text.empty());
  end.stop_signal = SIGINT;
  CHECK(make_exit_report(end).text ==
        "ddplaunch: job run7: 2 nodes × 8 workers, files in /jobs/run7\n"
        "ddplaunch: exit 130: stopped by Ctrl-C (SIGINT)\n");
  end.stop_signal = 0;
  end.failures = {exited(0, "a", 5, 100)};
  end.failures[0].stderr_path = "/jobs/run7/attempt_0/rank_00000.stderr";
  CHECK_FALSE(shows(end, "files in"));
  end.failures = {node_lost("gpu09", 100)};
  end.job = "job run7";
  CHECK(shows(end, "\n  job run7: files in /jobs/run7\nddplaunch: exit 113: "));
}

TEST_CASE("the user's signal decides, regardless of the workers") {
  JobEnd end;
  end.stop_signal = SIGINT;
  end.failures = {exited(0, "a", 5, 100)};
  CHECK(make_exit_report(end).exit_code == 130);
  CHECK(make_exit_report(end).text == "ddplaunch: exit 130: stopped by Ctrl-C (SIGINT)\n");
  end.stop_signal = SIGTERM;
  CHECK(make_exit_report(end).text == "ddplaunch: exit 143: stopped by SIGTERM\n");
  end.stop_signal = SIGHUP;
  CHECK(make_exit_report(end).text ==
        "ddplaunch: exit 129: stopped by SIGHUP (sent when a terminal closes)\n");
  end.stopped_by = "bash (pid 77 of user ann)";
  CHECK(make_exit_report(end).why ==
        "stopped by SIGHUP (sent when a terminal closes) from bash (pid 77 of user ann)");
  end.stop_signal = SIGINT;  // of a process, so not of the terminal
  CHECK(make_exit_report(end).why == "stopped by SIGINT from bash (pid 77 of user ann)");
  end.stopped_by.clear();
  end.failures.clear();
  end.early = {{1, "gpu02", {std::chrono::seconds(2), std::chrono::seconds(2)}}};
  CHECK(make_exit_report(end).text ==
        "  note: rank 1 on gpu02 exited 0 before that\nddplaunch: exit 130: stopped by Ctrl-C (SIGINT)\n");
  end.early.clear();
  end.failures = {node_lost("gpu03", 100), node_lost("gpu04", 100)};
  end.failures[0].error.text = "its host key is not known\nAccept it with: ssh gpu03";
  end.failures[1].error.sys = SIGINT;  // it got the signal, too
  end.awaited = "gpu05 (connecting)";
  CHECK(make_exit_report(end).text ==
        "  node gpu03: its host key is not known\n"
        "    Accept it with: ssh gpu03\n"
        "ddplaunch: exit 130: stopped by Ctrl-C (SIGINT) while waiting for gpu05 (connecting)\n");
}

TEST_CASE("a successful end prints nothing, and the master's own failures have their code") {
  CHECK(make_exit_report({}).exit_code == 0);
  CHECK(make_exit_report({}).text.empty());
  JobEnd end;
  end.master = Error{ErrorCode::kSystem, "create /x: No space left on device", ENOSPC};
  CHECK(make_exit_report(end).exit_code == 116);
  CHECK(make_exit_report(end).text == "ddplaunch: exit 116: create /x: No space left on device\n");
  end.master = Error{ErrorCode::kUsage, "hosts:1:6: bad slots\nhosts:2:1: duplicate", 0};
  CHECK(make_exit_report(end).text ==
        "ddplaunch: hosts:2:1: duplicate\n"
        "ddplaunch: exit 2: hosts:1:6: bad slots\n");
}

TEST_CASE("a job that only our own stop ended is never a success") {
  JobEnd end;
  end.failures = {signaled(0, "a", SIGKILL, 10, true), signaled(1, "a", SIGKILL, 10, true)};
  const ExitReport report = make_exit_report(end);
  CHECK(report.exit_code == 110);
  CHECK(report.text ==
        "ddplaunch: the job was stopped without a cause\n"
        "    ranks 0-1 on a: stopped by ddplaunch, SIGKILL\n"
        "ddplaunch: exit 110: internal error: stopped without a known cause (please report)\n");
}

TEST_CASE("the master's root cause overrides the earliest failure") {
  JobEnd end;
  end.failures = {exited(0, "a", 1, 10), exited(1, "b", 2, 20)};
  end.root = 1;
  CHECK(make_exit_report(end).exit_code == 2);
  for (const std::size_t unknown : {2, 99}) {  // no such failure: as if not given
    end.root = unknown;
    CHECK(make_exit_report(end).exit_code == 1);
  }
}

TEST_CASE("a job of 4096 ranks gets a short report") {
  JobEnd end;
  for (int rank = 0; rank < 4096; ++rank) {
    end.failures.push_back(signaled(rank, "gpu" + std::to_string(100 + rank / 8), SIGTERM, 200, true));
  }
  end.failures[77] = exited(77, "gpu109", 1, 100);
  const std::string text = make_exit_report(end).text;
  CHECK(text.find("    ranks 0-76,78-4095 on gpu100, gpu101, gpu102, gpu103 and 508 more hosts: stopped by "
                  "ddplaunch, "
                  "SIGTERM\n") != std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 5);
}

TEST_CASE("every kind of error has one row, in the table and in docs/users/exit_codes.md") {
  std::ifstream file(DDP_SOURCE_DIR "/docs/users/exit_codes.md");
  REQUIRE(file);
  std::set<std::string> documented;
  for (std::string line; std::getline(file, line);)
    documented.insert(line);
  std::set<ErrorCode> seen;
  for (const ExitCodeRow& row : exit_code_table()) {
    INFO(kind_name(row.error));
    CHECK(seen.insert(row.error).second);
    CHECK(documented.count("| " + std::to_string(row.exit_code) + " | " + kind_name(row.error) + " | " +
                           row.meaning + " |") == 1);
    CHECK(row.kind == kind_name(row.error));
    CHECK(exit_code_of(Error{row.error, "", 0}) == row.exit_code);
    // Python exits with 120 when its flush fails; 125 and up belong to shells.
    CHECK((row.exit_code < 3 || row.exit_code == 126 || row.exit_code == 143 ||
           (row.exit_code >= 110 && row.exit_code <= 119)));
  }
  CHECK(exit_code_of(Error{ErrorCode::kCancelled, "", SIGINT}) == 130);
  // Enumerators are consecutive: each one must have been seen.
  for (int code = 0; !kind_name(static_cast<ErrorCode>(code)).empty(); ++code) {
    CHECK(seen.count(static_cast<ErrorCode>(code)) == 1);
  }
}

TEST_CASE("all facts about a cause are reported") {
  JobEnd end;
  Failure root = signaled(5, "gpu02", SIGKILL, 12'345);
  root.ran = std::chrono::milliseconds(12'100);
  root.attempt = root.start_attempt = 2;
  root.evidence.oom = "the kernel killed it (kernel log: Killed process 4005)";
  root.evidence.xid = "NVRM: Xid (PCI:0000:65:00): 79, pid=4005, GPU has fallen off the bus.";
  root.evidence.exception =
      WorkerException{"RuntimeError", "first\nsecond", "train.py:12 in main: step()", "…", 1'700'000'000};
  end.failures = {root};
  Failure before = exited(1, "gpu01", 7, 900);
  end.earlier = {before, before};
  end.earlier[1].attempt = 1;
  end.restarts = 2;
  CHECK(make_exit_report(end).exit_code == 137);
  CHECK(make_exit_report(end).text ==
        "ddplaunch: the job failed 12.3 s into attempt 2, after 2 restarts\n"
        "  root cause: rank 5 (local rank 1) on gpu02, pid 4005: killed by SIGKILL, out of memory, 12.1 s "
        "after "
        "its start\n"
        "    out of memory: the kernel killed it (kernel log: Killed process 4005)\n"
        "    NVIDIA driver: NVRM: Xid (PCI:0000:65:00): 79, pid=4005, GPU has fallen off the bus.\n"
        "      the GPU has fallen off the bus: power, cooling or hardware; take the node out of use\n"
        "    exception: RuntimeError: first\n"
        "      at train.py:12 in main: step()\n"
        "  earlier attempts:\n"
        "    attempt 0, after 900 ms: rank 1 on gpu01 exited 7\n"
        "    attempt 1, after 900 ms: rank 1 on gpu01 exited 7\n"
        "ddplaunch: exit 137: rank 5 on gpu02 killed by SIGKILL, out of memory\n");
}

TEST_CASE("each line of the driver is a fact of its own") {
  JobEnd end;
  end.failures = {signaled(5, "gpu02", SIGKILL, 10)};
  end.failures[0].evidence.xid = "first\nsecond\nthird";
  CHECK(shows(end, "    NVIDIA driver: first\n    NVIDIA driver: second\n    NVIDIA driver: third\n"));
}

TEST_CASE("of many earlier attempts the first and the last three are listed, and the causes are counted") {
  JobEnd end;
  end.failures = {exited(0, "a", 3, 10)};
  end.failures[0].attempt = 1'500;
  end.restarts = 1'500;
  for (std::uint32_t attempt = 0; attempt < 1'500; ++attempt) {
    Failure cause = exited(static_cast<int>(attempt % 3), attempt % 3 == 2 ? "b" : "a", 7, 900);
    if (attempt == 700) cause = signaled(1, "a", SIGSEGV, 900);
    if (attempt == 800 || attempt == 801) {
      cause.kind = Failure::Kind::kHung;
      cause.host.clear();
      cause.error.text = "no rank has made progress for 60 s:\n  all 4 ranks wait";
    }
    cause.attempt = attempt;
    end.earlier.push_back(cause);
  }
  CHECK(make_exit_report(end).text ==
        "ddplaunch: the job failed 10 ms into attempt 1500, after 1500 restarts\n"
        "  root cause: rank 0 (local rank 0) on a, pid 4000: exited 3\n"
        "  earlier attempts:\n"
        "    attempt 0, after 900 ms: rank 0 on a exited 7\n"
        "    attempt 1, after 900 ms: rank 1 on a exited 7\n"
        "    attempt 2, after 900 ms: rank 2 on b exited 7\n"
        "    attempts 3 to 1496: in report.json\n"
        "    attempt 1497, after 900 ms: rank 0 on a exited 7\n"
        "    attempt 1498, after 900 ms: rank 1 on a exited 7\n"
        "    attempt 1499, after 900 ms: rank 2 on b exited 7\n"
        "  causes of the 1500 earlier attempts:\n"
        "    1497 × ranks 0-2 on a and b: exited 7\n"
        "    2 × no rank has made progress for 60 s\n"
        "    1 × rank 1 on a: killed by SIGSEGV\n"
        "ddplaunch: exit 3: rank 0 on a exited 3\n");
  end.earlier.resize(9);
  CHECK(shows(end, "    attempts 3 to 5: in report.json\n"));
  end.earlier.resize(8);
  const std::string all = make_exit_report(end).text;
  CHECK(all.find("    attempt 4, after") != std::string::npos);
  CHECK(all.find("causes of") == std::string::npos);
}

TEST_CASE("consequences name the type of their exception") {
  JobEnd end;
  end.failures = {exited(0, "a", 3, 10), exited(1, "a", 1, 20), exited(2, "b", 1, 30), exited(3, "b", 1, 40)};
  end.failures[1].evidence.exception = WorkerException{"RuntimeError", "peer 10.0.0.1:7 closed", "", "", {}};
  end.failures[2].evidence.exception = WorkerException{"RuntimeError", "peer 10.0.0.2:8 closed", "", "", {}};
  CHECK(shows(end,
              "  consequences:\n"
              "    ranks 1-2 on a and b: exited 1 (RuntimeError)\n"
              "    rank 3 on b: exited 1\n"));
}

TEST_CASE("a cause that the stop ended before it had exited is reported") {
  JobEnd end;
  end.failures = {signaled(0, "a", SIGTERM, 10, true)};
  end.failures[0].evidence.exception = WorkerException{"ValueError", "boom", "", "", {}};
  end.root = 0;
  CHECK(make_exit_report(end).exit_code == 1);
  CHECK(make_exit_report(end).text ==
        "ddplaunch: the job failed after 10 ms\n"
        "  root cause: rank 0 (local rank 0) on a, pid 4000: failed, and was stopped before it exited\n"
        "    exception: ValueError: boom\n"
        "ddplaunch: exit 1: rank 0 on a failed, and was stopped before it exited\n");
  // A crash is reported as a crash, even during a stop: ddplaunch's signals cause none.
  end.failures = {signaled(0, "a", SIGSEGV, 10, true)};
  CHECK(make_exit_report(end).exit_code == 139);
  CHECK(make_exit_report(end).why == "rank 0 on a killed by SIGSEGV");
  CHECK(failure_line(end.failures[0], false) == "rank 0 on a killed by SIGSEGV");
}

TEST_CASE("the duration of a worker is told, and the attempt in which it was started") {
  JobEnd end;
  end.failures = {exited(0, "a", 1, 1)};
  const auto text_after = [&](std::chrono::milliseconds ran) {
    end.failures[0].ran = ran;
    return make_exit_report(end).text;
  };
  CHECK(text_after(std::chrono::milliseconds(42)).find(": exited 1, 42 ms after its start\n") !=
        std::string::npos);
  end.failures[0].attempt = 3;  // it had survived failures of others
  end.failures[0].start_attempt = 1;
  CHECK(text_after(std::chrono::seconds(20)).find(", 20.0 s after its start in attempt 1\n") !=
        std::string::npos);
}

TEST_CASE("output of a worker does not control the terminal of the report") {
  JobEnd end;
  end.failures = {exited(0, "a", 1, 1)};
  end.failures[0].last_stderr = {"\x1b[31mr\x1b[2@ed\x1b[0m \x1b[2J\atab\there \xc3\xa4 \x1b",
                                 std::string("nul\0", 4), "cut\x1b["};
  CHECK(shows(end, "    | red tab\there \xc3\xa4 \n    | nul\n    | cut\n"));
  end.failures[0].last_stderr = {
      "\xc2\x9b"
      "2J \xe2\x80\xae"
      "txt.exe\xe2\x80\xac \xe2\x81\xa6\xd8\x9c\xe2\x80\x8f \xe2\x80\x8b \x9b"
      "31m \xe6\x97\xa5 \xff"};
  end.failures[0].evidence.exception = WorkerException{"E", "a\xc2\x85", "f\xe2\x80\xae.py:1", "", {}};
  const std::string text = make_exit_report(end).text;
  CHECK(text.find("    | ?2J ?txt.exe? ??? ? ?31m \xe6\x97\xa5 \xff\n") != std::string::npos);
  CHECK(text.find("    exception: E: a?\n      at f?.py:1\n") != std::string::npos);
}

TEST_CASE("a known pattern has a hint") {
  JobEnd end;
  end.failures = {exited(0, "a", 1, 1)};
  CHECK_FALSE(shows(end, "hint"));
  end.failures[0].last_stderr = {
      "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in "
      "use)."};
  CHECK(shows(end,
              "  hint: a port is in use. If the script itself serves MASTER_PORT "
              "(TCPStore with is_master, tcp://), "
              "ddplaunch\n    already serves it; run the job with --store worker\n"));
  end.failures[0].last_stderr = {
      "RuntimeError: The client socket has timed out after 300s while trying to connect"};
  CHECK(shows(end, "so clients find no server; run the job with --store worker\n"));
  for (const char* line : {"insufficient shared memory (shm)", "No space left on device: '/dev/shm/x'"}) {
    end.failures[0].last_stderr = {line};
    CHECK(shows(end, "  hint: /dev/shm is full;"));
  }
  for (const char* line : {"bdb.BdbQuit", "EOFError: EOF when reading a line"}) {
    end.failures[0].last_stderr = {line};
    CHECK(shows(end, "as breakpoint() does, and has none; --stdin 0 gives rank 0, and no"));
  }
}

TEST_CASE("signals have an explanation where the name alone is unclear") {
  Failure failure = signaled(0, "a", SIGKILL, 1);
  CHECK(signal_meaning(failure).find("dmesg") != std::string::npos);
  failure.evidence.oom = "yes";
  CHECK(signal_meaning(failure).empty());
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM, SIGPIPE}) {
    failure.signal = signal;
    INFO(signal);
    CHECK_FALSE(signal_meaning(failure).empty());
  }
  for (const int xid : {13, 31, 32, 43, 45, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120}) {
    INFO(xid);
    CHECK_FALSE(xid_meaning("NVRM: Xid (PCI:0000:65:00): " + std::to_string(xid) + ", pid=1").empty());
  }
  CHECK(xid_meaning("NVRM: Xid (PCI:0000:65:00): 31, pid=1").find("MMU fault") != std::string::npos);
  CHECK(xid_meaning("NVRM: Xid (PCI:0000:65:00): 99999, pid=1").empty());
  CHECK(xid_meaning("NVRM: Xid").empty());
}

TEST_CASE("a worker that the OOM killer ended during our own stop is reported as killed, not as stopped") {
  JobEnd end;
  end.failures = {signaled(0, "a", SIGKILL, 10, true)};
  end.failures[0].evidence.oom = "oom_kill went from 0 to 1";
  end.root = 0;
  CHECK(make_exit_report(end).exit_code == 137);
  CHECK(make_exit_report(end).why == "rank 0 on a killed by SIGKILL, out of memory");
  // Without that evidence the SIGKILL is ours, and it cut the worker's own failure short.
  end.failures[0].evidence.oom.clear();
  CHECK(make_exit_report(end).exit_code == 1);
  CHECK(make_exit_report(end).why == "rank 0 on a failed, and was stopped before it exited");
}

TEST_CASE("one restart, one rank and one node are named in the singular") {
  JobEnd end;
  end.failures = {exited(0, "a", 1, 10'000), signaled(1, "b", SIGTERM, 10'001, true), node_lost("c", 10'002)};
  end.failures[0].attempt = 1;
  end.restarts = 1;
  CHECK(shows(end, "the job failed 10.0 s into attempt 1, after 1 restart\n"));
  CHECK(shows(end, "    rank 1 on b: "));
  CHECK(shows(end, "    node c: "));
  end.failures[0].attempt = 2;
  CHECK(shows(
      end,
      "the job failed 10.0 s into attempt 2, after 1 restart\n"));  // the other one made the world larger
  end.restarts = 2;
  end.failures.push_back(signaled(2, "b", SIGTERM, 10'001, true));
  end.failures.push_back(node_lost("d", 10'002));
  CHECK(shows(end, "the job failed 10.0 s into attempt 2, after 2 restarts\n"));
  CHECK(shows(end, "    ranks 1-2 on b: "));
  CHECK(shows(end, "    nodes c and d: "));
}

using namespace std::chrono_literals;

JobEnd ended_job(int restarts = 0) {
  JobEnd end;
  end.restarts = restarts;
  end.job = "job run7: 2 nodes × 8 workers";
  end.job_dir = "/jobs/run7";
  return end;
}

TEST_CASE("a long successful run names its files and figures") {
  CHECK(text_with_summary({}, ended_job(2), {3h + 25min, 1'395'864'371, 0.9614}, false) ==
        "ddplaunch: job run7: 2 nodes × 8 workers, files in /jobs/run7\n"
        "ddplaunch: succeeded after 3 h 25 min, 2 restarts, goodput 96.1 %, 1.3 GiB of output\n");
}

TEST_CASE("a short run without restarts has a summary only on request") {
  CHECK(text_with_summary({}, ended_job(), {59s, 12, 0}, false).empty());
  CHECK(text_with_summary({}, ended_job(), {59s, 12, 0}, true)
            .ends_with("succeeded after 59.0 s, goodput 0.0 %, 12 B of output\n"));
  CHECK(text_with_summary({}, ended_job(1), {2s, 12, 0}, false)
            .ends_with("succeeded after 2.0 s, 1 restart, goodput 0.0 %, 12 B of output\n"));
}

TEST_CASE("the last line of a failure stays the last one") {
  const ExitReport report{3, "ddplaunch: the job failed\n  root\nddplaunch: exit 3: why\n", "why"};
  CHECK(text_with_summary(report, ended_job(2), {59s, 12, 0}, false) == report.text);
  CHECK(text_with_summary(report, ended_job(2), {5min, 2048, 0.5}, false) ==
        "ddplaunch: the job failed\n  root\n  ran for 5 min, goodput 50.0 %, 2.0 KiB of output\nddplaunch: "
        "exit 3: why\n");
  const ExitReport one_line{2, "ddplaunch: exit 2: why\n", "why"};
  CHECK(text_with_summary(one_line, ended_job(), {5min, 0, 0}, false) ==
        "  ran for 5 min, goodput 0.0 %, 0 B of output\nddplaunch: exit 2: why\n");
}

}  // namespace
}  // namespace ddp::launcher

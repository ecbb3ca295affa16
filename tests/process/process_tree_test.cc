#include "launcher/keeper/process_tree.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "launcher/keeper/process_table.h"
#include "tests/process/process_probe.h"

namespace ddp::launcher {
namespace {

using namespace process_test;

/// This process adopts orphans, as the agent does.
const bool kAdopts = prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0;

Started start_worker(const std::string& mode, std::size_t ready, std::vector<std::string> env = {},
                     const std::string& number = "0") {
  REQUIRE(kAdopts);
  return start({DDP_PROCESS_WORKER, mode, number}, std::move(env), ready);
}

void reap_all(Started& worker) {
  CHECK(wait_end(worker.process) == ExitStatus::signaled(SIGKILL));
  reap_adopted({});
  for (const ProcessInfo& info : list_processes())
    CHECK(info.parent != getpid());
}

}  // namespace

TEST_CASE("stat lines with unusual names are parsed") {
  const std::string tail =
      " 10 11 12 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 18446744073709551615\n";
  const auto info = parse_stat("123 (a) R (b) S) D" + tail);
  REQUIRE(info.has_value());
  CHECK(info->pid == 123);
  CHECK(info->comm == "a) R (b) S");
  CHECK(info->state == 'D');
  CHECK(info->cpu == 5 + 6 + 7 + 8);
  CHECK(info->started == 987654);
  CHECK_FALSE(info->ending);
  const std::string rest = " 0 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 ";
  const auto is_ending = [&](char state, int code) {
    return parse_stat("1 (x) " + std::string(1, state) + tail.substr(0, tail.size() - 1) + rest +
                      std::to_string(code) + "\n")
        ->ending;
  };
  CHECK(is_ending('R', 143));     // SIGTERM, with a core
  CHECK(is_ending('R', 3 << 8));  // exit(3)
  CHECK_FALSE(is_ending('R', 0));
  CHECK_FALSE(is_ending('t', SIGTRAP));
  for (const int stop : {SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU})
    CHECK_FALSE(is_ending('T', stop));
  // The kernel hides the exit code (the last field) of another user's process, but not the flags (the ninth).
  for (const int flag : {0x4, 0x8, 0x200, 0x400}) {
    std::string text = "1 (x) R" + tail;
    text.replace(text.find("4194304"), 7, std::to_string(4194304 | flag));
    CHECK(parse_stat(text)->ending);
  }
  CHECK(parse_stat("1 (x\ny) S" + tail)->comm == "x\ny");
  CHECK(parse_stat("1 (x) S" + tail.substr(0, tail.find(" 1000")))->started == 987654);
  CHECK(!parse_stat("1 (x) S" + tail.substr(0, tail.find("987654"))).has_value());
  CHECK(!parse_stat("").has_value());
  CHECK(!parse_stat("1 (x) S").has_value());
  CHECK(!parse_stat("1 (x)").has_value());
  CHECK(!parse_stat("1 x S 1 1 1").has_value());
  CHECK(!parse_stat("1 (x S" + tail).has_value());
  CHECK(!parse_stat("1 x) S" + tail).has_value());
  CHECK(!parse_stat(")1(").has_value());
}

TEST_CASE("a status file is parsed") {
  const std::string text =
      "Name:\ta) (b\nUmask:\t0022\nState:\tD (disk "
      "sleep)\nTgid:\t12\nNgid:\t0\nPid:\t12\nPPid:\t3\nTracerPid:\t9\n"
      "Uid:\t1\t4294967294\t3\t4\nGid:\t5\t6\t7\t8\n";
  const auto info = parse_status(text);
  REQUIRE(info.has_value());
  CHECK(info->comm == "a) (b");
  CHECK(info->state == 'D');
  CHECK(info->pid == 12);
  CHECK(info->parent == 3);
  CHECK(info->uid == 4294967294);
  CHECK(!info->stops);
  CHECK(parse_status(text + "SigPnd:\t0000000000000000\nShdPnd:\t0000000000040000\n")->stops);
  CHECK(parse_status(text + "SigPnd:\t0000000000040001\nShdPnd:\t0000000000000000\n")->stops);
  CHECK(!parse_status(text + "SigPnd:\t0000000000020000\nShdPnd:\t0000000000080000\n")->stops);
  CHECK(!parse_status("").has_value());
  CHECK(!parse_status(text.substr(0, text.find("Uid"))).has_value());
}

TEST_CASE("a mark matches a whole environment entry only") {
  const std::string environment("A=1\0JOB\0JOB=12\0EMPTY=\0", 22);
  CHECK(has_entry(environment, "JOB=12"));
  CHECK(!has_entry(environment, "JOB=1"));
  CHECK(!has_entry(environment, "OB=12"));
  CHECK(entry_value(environment, "JOB") == "12");
  CHECK(has_entry(environment, "EMPTY="));
  CHECK(entry_value(environment, "EMPTY") == "");
  CHECK(!entry_value(environment, "JO").has_value());
  CHECK(!entry_value("", "JOB").has_value());
}

TEST_CASE("the table's entry of this process is right") {
  const auto self = read_process(getpid());
  REQUIRE(self.has_value());
  CHECK(self->parent == getppid());
  CHECK(self->uid == geteuid());
  CHECK(self->comm == read_stat(getpid())->comm);
  CHECK(self->state == 'R');
  CHECK(!read_process(0x3fffff).has_value());
  const auto all = list_processes();
  CHECK(std::is_sorted(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.pid > b.pid; }));
}

TEST_CASE("a process is found upwards, and a cycle of parents ends the search") {
  ProcessMap processes;
  for (const auto& [pid, parent] : {std::pair(5, 4), std::pair(4, 3), std::pair(8, 9), std::pair(9, 8)}) {
    processes[pid].pid = pid;
    processes[pid].parent = parent;
  }
  const auto find = [&](pid_t from, pid_t parent) {
    return find_upwards(processes, from, [=](const ProcessInfo& info) { return info.parent == parent; });
  };
  CHECK(find(5, 4) == 5);
  CHECK(find(5, 3) == 4);
  CHECK(find(5, 5) == 0);
  CHECK(find(3, 3) == 0);
  CHECK(find(8, 8) == 9);
  CHECK(find(8, 3) == 0);
}

TEST_CASE("a process whose first thread has ended lives as long as another thread") {
  const pid_t pid = fork();
  if (pid == 0) {
    std::thread([] { pause(); }).detach();
    syscall(SYS_exit, 0);
  }
  REQUIRE(wait_until([pid] { return read_process(pid)->state == 'Z'; }));
  const UniqueFd fd = open_process(pid);
  CHECK_FALSE(has_ended(fd.get()));
  CHECK_FALSE(has_pid_ended(pid));
  bool skipped = true;
  for (int tries = 0; skipped && tries < 20;
       ++tries) {                     // a machine that stands still looks like a blocked reader
    MarkSearch search("any", {pid});  // the thread that has ended shows no environment
    while (!search.is_over()) {
      search.wait(std::chrono::milliseconds(100));
      CHECK(search.take_found().empty());
    }
    skipped = search.skipped();
  }
  CHECK_FALSE(skipped);
  CHECK(signal_process(fd.get(), pid, SIGKILL) == 0);
  wait_for_end(fd.get(), kPatience);
  CHECK(has_ended(fd.get()));
  CHECK(has_pid_ended(pid));
  CHECK(reap_adopted({}) == 1);
  CHECK(signal_process(fd.get(), pid, SIGKILL) == ESRCH);
  CHECK(has_ended(fd.get()));
}

TEST_CASE("a tree with ignored TERM, other sessions, a daemon and a frozen process is killed completely") {
  const std::size_t descriptors = open_descriptors();
  {
    Started worker = start_worker("family", 5);
    const auto began = std::chrono::steady_clock::now();
    CHECK(kill_own_tree().empty());
    const auto took = std::chrono::steady_clock::now() - began;
    CHECK(took < kKillBound);
    const std::chrono::duration<double, std::milli> milliseconds = took;
    WARN("freeze and kill of 5 processes: " << milliseconds.count() << " ms");
    CHECK(worker.all_gone());
    reap_all(worker);
  }
  CHECK(descriptors_come_down_to(descriptors));
}

TEST_CASE("a child is identified by its descriptor: another process with its reused PID is left alone") {
  Started before = start_worker("rest", 1);
  Started chosen = start_worker("family", 5);
  Started other = start_worker("rest", 1);
  UniqueFd of_before = open_process(before.process.pid());
  REQUIRE(before.process.send_signal(SIGKILL).has_value());
  CHECK(wait_end(before.process) == ExitStatus::signaled(SIGKILL));
  std::vector<KnownProcess> only;
  only.push_back({other.process.pid(), std::move(of_before)});  // as if the kernel had reused the number
  only.push_back({chosen.process.pid(), open_process(chosen.process.pid())});
  TreeKill kill({}, kKillBound, std::move(only));
  REQUIRE(step_to_end(kill, kKillBound));
  CHECK(kill.found() == 4);  // without the family's daemon, which is a child of this process
  CHECK(kill.left().empty());
  CHECK(wait_end(chosen.process) == ExitStatus::signaled(SIGKILL));
  CHECK_FALSE(other.process.peek().has_value());
  CHECK(kill_own_tree().empty());
  reap_all(other);
}

TEST_CASE("a fork storm is killed completely") {
  Started worker = start_worker("storm", 40, {}, "300");
  // Act in the middle of the storm, when there is a crowd.
  TreeKill kill({}, kKillBound);
  REQUIRE(step_to_end(kill, kKillBound));
  CHECK(kill.left().empty());
  CHECK(kill.found() >= 40);
  CHECK(worker.all_gone());
  reap_all(worker);
}

TEST_CASE("a tree with more processes than free descriptors is killed completely") {
  Started worker = start_worker("storm", 100, {}, "150");
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 64;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  TreeKill kill({}, kKillBound);
  CHECK_FALSE(kill.step());
  const bool first_ended = wait_readable(worker.process.end_fd());  // the known ones are killed at once
  const bool over = step_to_end(kill, kKillBound);
  const auto left = kill.left();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(first_ended);
  CHECK(over);
  CHECK(kill.complete());
  CHECK(left.empty());
  CHECK(worker.all_gone());
  reap_all(worker);
}

TEST_CASE("a program that forks and exits all the time is caught") {
  Started worker = start_worker("hop", 1);
  const auto began = std::chrono::steady_clock::now();
  TreeKill kill({}, kKillBound);
  REQUIRE(step_to_end(kill, kKillBound, [&] { reap_adopted(std::vector<pid_t>{worker.process.pid()}); }));
  CHECK(kill.left().empty());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  WARN("caught after " << took.count() << " ms");
  CHECK(worker.all_gone());
  wait_end(worker.process);
  reap_adopted({});
}

TEST_CASE("a stepwise kill finds all at once, and kills them when all rest") {
  const std::string mark = unique_mark("DDPTEST_TREE");
  Started host = start({DDP_PROCESS_HOST, "parent", DDP_PROCESS_WORKER, "family"}, {mark}, 5);
  const auto all_rest = [&mark] {
    const auto live = live_processes_of(mark);
    return live.size() == 6 &&
           std::all_of(live.begin(), live.end(), [](const auto& one) { return one.state == 'T'; });
  };
  const auto began = std::chrono::steady_clock::now();
  TreeKill kill({}, std::chrono::minutes(1));
  CHECK_FALSE(kill.step());
  CHECK(kill.found() == 6);
  REQUIRE(wait_until(all_rest));
  REQUIRE(host.process.send_signal(SIGCONT).has_value());
  REQUIRE(wait_until([&] { return read_process(host.process.pid())->state != 'T'; }));
  CHECK_FALSE(kill.step());
  if (std::chrono::steady_clock::now() - began > std::chrono::milliseconds(900)) {
    // The machine is busy, and the second in which it waits for rest is over.
    CHECK(step_to_end(kill, std::chrono::milliseconds(2)));
    CHECK(host.all_gone());
    return reap_all(host);
  }
  REQUIRE(host.process.send_signal(SIGSTOP).has_value());
  REQUIRE(wait_until(all_rest));  // nothing was killed while one of them ran
  CHECK_FALSE(kill.step());
  CHECK(host.all_gone());
  CHECK(step_to_end(kill, std::chrono::milliseconds(2)));
  CHECK(kill.found() == 6);
  CHECK(kill.left().empty());
  CHECK(kill.complete());
  reap_all(host);
}

TEST_CASE("a kill whose time is over has killed all that it found") {
  Started worker = start_worker("family", 5);
  TreeKill kill({}, std::chrono::milliseconds(0));
  CHECK(kill.step());
  CHECK_FALSE(kill.complete());
  CHECK(kill.found() == 5);
  CHECK(worker.all_gone());
  CHECK(kill_own_tree().empty());  // waits for their ends
  reap_all(worker);
}

TEST_CASE("workers outside the tree are found by the job's mark, and no other processes") {
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  const std::string id = job.substr(job.find('=') + 1);
  Started ours = start_worker("family", 5, {job, "LOCAL_RANK=1"});
  Started longer =
      start_worker("rest", 1, {job + "0", "LOCAL_RANK=1"});  // another job, whose id begins alike
  Started shell =
      start_worker("rest", 1, {job});  // a user's shell where the variable was exported: no worker
  CHECK(in_another_process([&] { return kill_own_tree({}).empty() ? 0 : 1; }) == 0);
  CHECK(!ours.process.peek().has_value());  // without an id only the own tree is searched
  CHECK(in_another_process([&] { return kill_own_tree({id}).empty() ? 0 : 1; }) == 0);
  CHECK(ours.all_gone());
  reap_adopted(std::vector<pid_t>{ours.process.pid(), longer.process.pid(), shell.process.pid()});
  CHECK(wait_end(ours.process) == ExitStatus::signaled(SIGKILL));
  CHECK(!longer.process.peek().has_value());
  CHECK(!shell.process.peek().has_value());
}

TEST_CASE("a worker that starts while another one outside the tree is being stopped is found, too") {
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  Started first = start_worker("rest", 1, {job, "LOCAL_RANK=0"});
  Pipe found = make_pipe(), go = make_pipe();
  const pid_t killer = fork();
  if (killer == 0) {
    TreeKill kill({job.substr(job.find('=') + 1)}, kKillBound);
    while (kill.found() == 0 && !kill.step())
      kill.wait(std::chrono::milliseconds(1));
    char byte = 'f';
    if (write(found.write_end.get(), &byte, 1) != 1 || read(go.read_end.get(), &byte, 1) != 1) _exit(1);
    _exit(step_to_end(kill, kKillBound) && kill.found() == 2 ? 0 : 2);
  }
  CHECK(read_bytes(found.read_end.get(), 1) == "f");
  // It is stopped, and killed later: it could fork.
  CHECK(wait_until([&] { return read_process(first.process.pid())->state == 'T'; }));
  Started second = start_worker("rest", 1, {job, "LOCAL_RANK=1"});
  REQUIRE(write(go.write_end.get(), "x", 1) == 1);
  int status = 0;
  REQUIRE(waitpid(killer, &status, 0) == killer);
  CHECK(WEXITSTATUS(status) == 0);
  for (Started* worker : {&first, &second})
    CHECK(wait_end(worker->process) == ExitStatus::signaled(SIGKILL));
}

TEST_CASE("the reader of a search holds no descriptor of its parent, and ends with the search") {
  {
    MarkSearch search("any", std::vector<pid_t>(5000, getpid()));  // it waits for room for its answers
    const std::string proc = "/proc/" + std::to_string(search.reader());
    REQUIRE(wait_until([&] { return read_process(search.reader())->state == 'S'; }));
    CHECK(read_process(search.reader())->comm == "ddp-mark-search");
    const std::filesystem::directory_iterator descriptors(proc + "/fd");
    CHECK(std::distance(begin(descriptors), end(descriptors)) ==
          2);  // its socket, and the process that it reads
  }
  CHECK(waitpid(-1, nullptr, WNOHANG | __WCLONE) == -1);
}

TEST_CASE("a kill spares the reader of another search and does not report it as left") {
  MarkSearch search("any", std::vector<pid_t>(5000, getpid()));
  const pid_t reader = search.reader();
  REQUIRE(reader > 0);
  REQUIRE(wait_until([&] { return read_process(reader)->state == 'S'; }));  // waits for room for its answers
  CHECK(is_search_reader(reader));
  Started worker = start_worker("rest", 1);
  CHECK_FALSE(is_search_reader(worker.process.pid()));
  TreeKill kill({}, kKillBound);
  CHECK(step_to_end(kill, kKillBound));
  CHECK(kill.found() == 1);
  CHECK(kill.left().empty());
  CHECK(read_process(reader)->state == 'S');
  CHECK(wait_end(worker.process) == ExitStatus::signaled(SIGKILL));
}

TEST_CASE("a search goes on with another reader when one was killed, and says that it skipped") {
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  Started marked = start_worker("rest", 1, {job, "LOCAL_RANK=2"});
  std::vector<pid_t> pids(5000, getpid());
  pids.push_back(marked.process.pid());
  MarkSearch search(job.substr(job.find('=') + 1), std::move(pids));
  const pid_t reader = search.reader();
  REQUIRE(reader > 0);
  REQUIRE(wait_until([&] { return read_process(reader)->state == 'S'; }));  // waits for room for its answers
  REQUIRE(kill(reader, SIGKILL) == 0);
  std::vector<pid_t> found;
  while (!search.is_over()) {
    search.wait(std::chrono::milliseconds(100));
    for (const MarkedProcess& process : search.take_found())
      found.push_back(process.pid);
  }
  CHECK(found == std::vector<pid_t>{marked.process.pid()});
  CHECK(search.skipped());
  kill(marked.process.pid(), SIGKILL);
  CHECK(wait_end(marked.process) == ExitStatus::signaled(SIGKILL));
}

TEST_CASE(
    "a process that keeps executing programs is found by each search, or the search says that it skipped") {
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  Started restless = start_worker("exec", 1, {job, "LOCAL_RANK=2"});
  int found = 0, skipped = 0;
  constexpr int kSearches = 500;
  for (int i = 0; i < kSearches; ++i) {
    MarkSearch search(job.substr(job.find('=') + 1), {restless.process.pid()});
    while (!search.is_over()) {
      search.wait(std::chrono::milliseconds(100));
      for (const MarkedProcess& process : search.take_found())
        found += process.local_rank == 2;
    }
    skipped += search.skipped();
  }
  CHECK(found + skipped == kSearches);
  CHECK(found > kSearches / 2);
  kill(restless.process.pid(), SIGKILL);
  CHECK(wait_end(restless.process) == ExitStatus::signaled(SIGKILL));
}

TEST_CASE("marked processes below another keeper belong to that keeper") {
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  const std::string id = job.substr(job.find('=') + 1);
  Started node = start({DDP_PROCESS_HOST, "keeper", "serve", "0", id, DDP_PROCESS_WORKER, "stubborn"}, {}, 2);
  CHECK(in_another_process([&] { return kill_own_tree({id}).empty() ? 0 : 1; }) == 0);
  CHECK(live_processes_of(job).size() == 1);
  REQUIRE(node.process.send_signal(SIGTERM).has_value());
  CHECK(wait_end(node.process).text() == "exited 5");
  CHECK(node.all_gone());
}

TEST_CASE("a marked process above the killing one is left alone") {
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  const std::string id = job.substr(job.find('=') + 1);
  Started shell = start({"/bin/sh", "-c", "echo x | \"$@\"; exit $?", "sh", DDP_PROCESS_HOST, "keeper",
                         "exit", "0", id, DDP_PROCESS_WORKER, "rest"},
                        {job, "LOCAL_RANK=0"}, 0);
  CHECK(wait_end(shell.process).text() == "exited 3");
  CHECK(read_all(shell.liveness.read_end.get()).size() <= 1);
}

TEST_CASE("a process of another user is reported, not hidden", "[root]") {
  if (geteuid() != 0) SKIP_TEST("only root can start a process of another user");
  // A worker of root below a process that has given up root, as below sudo.
  Pipe liveness = make_pipe();
  Pipe report_pipe = make_pipe();
  const int code = in_another_process([&] {
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    ChildSpec spec;
    spec.path = DDP_PROCESS_WORKER;
    spec.argv = {"worker", "family"};
    spec.inherit = {{liveness.write_end.get(), 3}};
    auto child = spawn(spec);
    if (!child || read_bytes(liveness.read_end.get(), 5).size() != 5 || setresuid(65534, 65534, 65534) != 0)
      return 1;
    TreeKill kill({}, kKillBound);
    // It is not waited for. A second pass shows what it has forked during the first.
    if (kill.step() || !kill.step()) return 4;
    std::vector<KnownProcess> only;
    only.push_back({child->pid(), open_process(child->pid())});
    TreeKill chosen({}, kKillBound, std::move(only));
    if (chosen.step() || !chosen.step()) return 5;
    if (kill.left().size() != 5 || kill.found() != 5 || chosen.left().size() != 4) return 2;
    std::string text;
    for (const LeftProcess& one : chosen.left())
      if (one.pid == child->pid()) text = one.text();
    if (write(report_pipe.write_end.get(), text.data(), text.size()) < 0) return 3;
    child->abandon();
    return 0;
  });
  CHECK(code == 0);
  report_pipe.write_end.reset();
  liveness.write_end.reset();
  const std::string text = read_all(report_pipe.read_end.get());
  const std::string pid = text.substr(0, text.find(' '));
  const std::string asleep = pid + " (process_worker, state S, uid 0), no permission to signal it";
  const std::string on_its_way = pid + " (process_worker, state R, uid 0), no permission to signal it";
  CHECK((text == asleep || text == on_its_way));
  // This process has adopted the orphan.
  CHECK(kill_own_tree().empty());
  CHECK(reaches_end(liveness.read_end.get()));
  reap_adopted({});
}

TEST_CASE("orphans are reaped, and children with an owner are not") {
  Started owned = start_worker("exit", 0, {}, "4");
  Started parent = start_worker("orphan", 1);
  REQUIRE(wait_readable(owned.process.end_fd()));
  CHECK(wait_end(parent.process).success());
  TreeKill kill({}, kKillBound);
  CHECK(step_to_end(kill, kKillBound));  // ends the orphan
  CHECK(kill.complete());                // the owned zombie is not waited for
  CHECK(kill.left().empty());
  CHECK(reap_adopted(std::vector<pid_t>{owned.process.pid()}) == 1);
  CHECK(owned.process.try_wait() == ExitStatus::exited(4));
}

}  // namespace ddp::launcher

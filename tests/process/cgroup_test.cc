#include "launcher/keeper/cgroup.h"

#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "launcher/keeper/keeper.h"
#include "launcher/keeper/process_tree.h"
#include "tests/process/process_probe.h"

namespace ddp::launcher {
namespace {

using namespace process_test;
namespace fs = std::filesystem;

enum class Kind { kV2, kFreezer };

/// Returns only this hierarchy, as on a machine that has no other.
CgroupDirs only(Kind kind) {
  CgroupDirs dirs = own_cgroups();
  (kind == Kind::kV2 ? dirs.freezer : dirs.v2).clear();
  return dirs;
}

std::vector<Kind> usable_kinds() {
  std::vector<Kind> kinds;
  for (const Kind kind : {Kind::kV2, Kind::kFreezer}) {
    auto group = Cgroup::make(only(kind), "probe", 0);
    if (!group) {
      CHECK(group.error().text.find("is not this process's control group") == std::string::npos);
      continue;
    }
    REQUIRE(group->remove());
    kinds.push_back(kind);
  }
  return kinds;
}

/// Returns the kinds that work here. Ends the program as skipped if there is none.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> usable = usable_kinds();
  if (usable.empty()) {
    std::fprintf(stderr, "skipped: no control group can be made here: %s\n",
                 Cgroup::make(own_cgroups(), "probe", 0).error().text.c_str());
    std::exit(77);
  }
  return usable;
}

Cgroup make(Kind kind, const std::string& job = "test") {
  auto group = Cgroup::make(only(kind), job, 0);
  REQUIRE(group.has_value());
  return std::move(*group);
}

/// Makes a group and locks it, as an agent does. Other jobs of this machine remove a group that nobody holds,
/// and may find this one before the lock.
UniqueFd make_held(const std::string& path) {
  UniqueFd directory;
  const bool held = wait_until([&] {
    mkdir(path.c_str(), 0755);
    directory.reset(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return directory && flock(directory.get(), LOCK_SH) == 0 && fs::exists(path);
  });
  REQUIRE(held);
  return directory;
}

/// Makes groups, as job after job does, until the group `path` is gone. One sweep may pass over it: a sweep
/// of another test can hold it at that moment, and end before it removes it.
bool is_swept(Kind kind, const std::string& path) {
  return wait_until([&] {
    CHECK(make(kind, "sweep").remove());
    return !fs::exists(path);
  });
}

/// This process adopts orphans, as the agent does.
const bool kAdopts = prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0;

Started start_worker(int group, int procs, std::size_t ready, const std::string& mode,
                     const std::string& number = "0") {
  REQUIRE(kAdopts);
  ChildSpec spec;
  spec.argv = {DDP_PROCESS_WORKER, mode, number};
  spec.cgroup = group;
  spec.cgroup_procs = procs;
  return start(std::move(spec), ready);
}

Started start_in(const Cgroup& group, std::size_t ready, const std::string& mode,
                 const std::string& number = "0") {
  return start_worker(group.directory(), group.procs(), ready, mode, number);
}

/// Checks that all processes are dead, reaps the leader, and removes the group.
void finish(Started& worker, Cgroup& group) {
  CHECK(worker.all_gone());
  wait_end(worker.process);
  reap_adopted({});
  CHECK(group.remove(kPatience));
  CHECK(!fs::exists(group.path()));
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("the process' own groups are those that list the process") {
  kinds();
  const CgroupDirs dirs = own_cgroups();
  for (const std::string& dir : {dirs.v2, dirs.freezer}) {
    if (dir.empty()) continue;
    const std::string procs = "\n" + text_of(dir + "/cgroup.procs");
    CHECK(procs.find("\n" + std::to_string(getpid()) + "\n") != std::string::npos);
  }
}

TEST_CASE("a child is in its group from its start, and so are its descendants") {
  for (const Kind kind : kinds()) {
    for (const bool started_there : {true, false}) {
      const std::size_t descriptors = open_descriptors();
      {
        Cgroup group = make(kind);
        CHECK((kind == Kind::kV2) == (group.directory() >= 0));
        Started worker = start_worker(started_there ? group.directory() : -1, group.procs(), 5, "family");
        const auto pids = group.pids();
        CHECK(pids.size() == 5);
        CHECK(std::count(pids.begin(), pids.end(), worker.process.pid()) == 1);
        CHECK(!group.remove());
        group.kill();
        finish(worker, group);
      }
      CHECK(descriptors_come_down_to(descriptors));
    }
  }
}

TEST_CASE("a child starts even when its group cannot be entered") {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  Started stranger = start_worker(null.get(), null.get(), 0, "exit", "4");
  CHECK(wait_end(stranger.process) == ExitStatus::exited(4));
  for (const Kind kind : kinds()) {
    Cgroup group = make(kind);
    REQUIRE(group.remove());
    Started worker = start_in(group, 0, "exit", "5");
    CHECK(wait_end(worker.process) == ExitStatus::exited(5));
    CHECK(group.pids().empty());
    group.kill();
  }
}

TEST_CASE("a failed start is reported as without a group, and leaves an empty group") {
  for (const Kind kind : kinds()) {
    Cgroup group = make(kind);
    ChildSpec spec;
    spec.path = "/no/such/program";
    spec.argv = {"x"};
    spec.cgroup = group.directory();
    spec.cgroup_procs = group.procs();
    const auto child = spawn(spec);
    REQUIRE(child.has_error());
    CHECK(child.error().code == ErrorCode::kExec);
    CHECK(child.error().sys == ENOENT);
    CHECK(group.pids().empty());
    CHECK(group.remove(kPatience));
  }
}

TEST_CASE("killing the group alone ends a fork storm") {
  for (const Kind kind : kinds()) {
    Cgroup group = make(kind);
    Started worker = start_in(group, 40, "storm", "300");
    const auto began = std::chrono::steady_clock::now();
    int kills = 0;
    do {
      group.kill();
      ++kills;
    } while (kind == Kind::kFreezer && !group.pids().empty() && kills < 1000);
    CHECK(worker.all_gone());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    WARN((kind == Kind::kV2 ? "v2: " : "freezer: ") << took.count() << " ms, " << kills << " kills");
    finish(worker, group);
  }
}

TEST_CASE("a process that left tree, session and environment is killed through its group") {
  for (const Kind kind : kinds()) {
    Cgroup group = make(kind);
    Started worker = start_in(group, 2, "daemon");
    // A process outside the family, like the keeper of another node, knows only the path.
    CHECK(in_another_process([&] {
            auto theirs = Cgroup::open(group.path());
            if (!theirs) return 1;
            TreeScope scope;
            scope.cgroup = std::make_shared<Cgroup>(std::move(*theirs));
            TreeKill kill(scope, kKillBound);
            if (!step_to_end(kill, kKillBound)) return 3;
            return kill.left().empty() && kill.found() == 2 ? 0 : 2;
          }) == 0);
    finish(worker, group);
  }
}

TEST_CASE("killing a group also ends processes of another user", "[root]") {
  if (geteuid() != 0 || std::count(kinds().begin(), kinds().end(), Kind::kV2) == 0)
    SKIP_TEST("needs root and cgroup v2");
  Cgroup group = make(Kind::kV2);
  Started worker = start_in(group, 1, "stubborn");
  REQUIRE(chown((group.path() + "/cgroup.kill").c_str(), 65534, 65534) == 0);
  CHECK(in_another_process([&] {
          if (setresuid(65534, 65534, 65534) != 0) return 1;
          auto theirs = Cgroup::open(group.path());
          if (!theirs) return 2;
          TreeScope scope;
          scope.cgroup = std::make_shared<Cgroup>(std::move(*theirs));
          return kill_own_tree(scope).empty() ? 0 : 3;
        }) == 0);
  CHECK(wait_end(worker.process) == ExitStatus::signaled(SIGKILL));
  finish(worker, group);
}

TEST_CASE("groups that a worker creates inside its own are removed with it") {
  for (const Kind kind : kinds()) {
    Cgroup group = make(kind);
    REQUIRE(mkdir((group.path() + "/a").c_str(), 0755) == 0);
    REQUIRE(mkdir((group.path() + "/a/b").c_str(), 0755) == 0);
    const UniqueFd procs(open((group.path() + "/a/b/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    Started worker = start_worker(-1, procs.get(), 5, "family");
    CHECK(group.pids().size() == 5);
    CHECK(!group.remove());
    group.kill();
    finish(worker, group);
  }
}

TEST_CASE(
    "a worker's groups count down to a depth of 16, and a deeper one keeps its group from being removed") {
  for (const Kind kind : kinds()) {
    Cgroup group = make(kind);
    std::string last = group.path(), deeper = last;
    for (int depth = 1; depth <= 17; ++depth) {
      last = std::exchange(deeper, deeper + "/d");
      REQUIRE(mkdir(deeper.c_str(), 0755) == 0);
    }
    const UniqueFd deeper_procs(open((deeper + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    Started worker = start_worker(-1, deeper_procs.get(), 1, "rest");
    CHECK(group.pids().empty());
    std::ofstream(last + "/cgroup.procs") << worker.process.pid();
    CHECK(group.pids() == std::vector<pid_t>{worker.process.pid()});
    group.kill();
    CHECK(wait_end(worker.process) == ExitStatus::signaled(SIGKILL));
    CHECK_FALSE(group.remove());
    CHECK(rmdir(deeper.c_str()) == 0);
    finish(worker, group);
  }
}

TEST_CASE("groups of dead agents are killed and removed, and no others") {
  for (const Kind kind : kinds()) {
    const CgroupDirs dirs = only(kind);
    const std::string own = kind == Kind::kV2 ? dirs.v2 : dirs.freezer;
    const auto unique = static_cast<std::uint64_t>(getpid());
    const std::string stale = own + '/' + cgroup_name("dead", 0, unique);
    const std::string inhabited = own + '/' + cgroup_name("dead", 1, unique);
    const std::string foreign = own + "/ddplaunch." + std::to_string(getpid());
    rmdir(foreign.c_str());  // a run that was killed has left it, in a PID namespace with the same numbers
    REQUIRE(mkdir(foreign.c_str(), 0755) == 0);
    UniqueFd agents[2] = {make_held(stale), make_held(inhabited)};
    REQUIRE(mkdir((stale + "/below").c_str(), 0755) == 0);
    const UniqueFd procs(open((inhabited + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    Started worker = start_worker(-1, procs.get(), 1, "rest");
    for (UniqueFd& agent : agents)
      agent.reset();
    Cgroup alive = make(kind, "living");
    Cgroup other = make(kind, "other");
    CHECK(alive.path() != other.path());
    CHECK(is_swept(kind, stale));
    CHECK(fs::exists(foreign));
    CHECK(fs::exists(alive.path()));  // empty, but locked
    wait_end(worker.process);         // killed with its dead agent's group, which had no lock
    CHECK(alive.remove(kPatience));
    CHECK(alive.remove(kPatience));        // a second call: it does not exist
    { Cgroup next = make(kind, "next"); }  // left behind, empty
    CHECK(is_swept(kind, inhabited));
    CHECK(rmdir(foreign.c_str()) == 0);
    CHECK(other.remove());
    CHECK(is_swept(kind, own + '/' + cgroup_name("next", 0, unique)));
  }
}

TEST_CASE("one agent may create several groups of the same job and attempt, but not without end") {
  for (const Kind kind : kinds()) {
    std::vector<Cgroup> groups;
    std::set<std::string> paths;
    Error refused;
    while (groups.size() < 100 && refused.text.empty()) {
      auto group = Cgroup::make(only(kind), "test", 0);
      if (group) {
        paths.insert(group->path());
        groups.push_back(std::move(*group));
      } else {
        refused = group.error();
      }
    }
    CHECK(paths.size() == groups.size());
    CHECK(groups.size() >= 4);  // the cleanup of a test beside this one may take a name
    CHECK(groups.size() <= 16);
    const std::string parent = fs::path(groups.front().path()).parent_path();
    CHECK_THAT(refused.text, Catch::Matchers::StartsWith("mkdir " + parent + '/'));
    for (Cgroup& group : groups)
      CHECK(group.remove());
  }
}

TEST_CASE("directories that are not the process' own group are refused with the reason") {
  CHECK(Cgroup::make({}, "job", 0).error().text == "neither cgroup v2 nor the freezer of v1 is mounted here");
  CHECK(Cgroup::make({"/tmp", ""}, "job", 0).error().text == "/tmp is not this process's control group");
  CHECK(Cgroup::make({"", "/no/such"}, "job", 0).error().text == "/no/such: No such file or directory");
  CHECK(Cgroup::make({"/tmp", "/no/such"}, "job", 0).error().text ==
        "/tmp is not this process's control group; /no/such: No such file or directory");
  CHECK(Cgroup::open("/tmp").error().text == "/tmp is not a control group of ddplaunch");
  CHECK(Cgroup::open("/tmp/ddplaunch.a.1.2").error().text ==
        "/tmp/ddplaunch.a.1.2: No such file or directory");
  for (const Kind kind : kinds()) {
    // A group of ddplaunch's kind in which other processes live.
    Cgroup group = make(kind);
    CHECK(Cgroup::make(kind == Kind::kV2 ? CgroupDirs{group.path(), ""} : CgroupDirs{"", group.path()}, "job",
                       0)
              .error()
              .text == group.path() + " is not this process's control group");
    CHECK(group.remove(kPatience));
  }
}

TEST_CASE("without write permission no group is created, and the reason is reported", "[root]") {
  if (geteuid() != 0) SKIP_TEST("only root can run as another user");
  Pipe report_pipe = make_pipe();
  CHECK(in_another_process([&] {
          if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) return 1;
          const auto group = Cgroup::make(own_cgroups(), "job", 0);
          if (group) return 2;
          const std::string& text = group.error().text;
          return write(report_pipe.write_end.get(), text.data(), text.size()) > 0 ? 0 : 3;
        }) == 0);
  report_pipe.write_end.reset();
  const std::string text = read_all(report_pipe.read_end.get());
  CHECK(text.find("Permission denied") != std::string::npos);
  CHECK(text.find(own_cgroups().v2) == 0);
}

namespace {

/// A keeper and its agent, with a worker in its own group.
struct Node {
  Started keeper;
  Pipe output;
  Pipe errors;
  std::string group;
};

Node start_node(const std::string& mode, std::size_t count, const std::string& agent_mode = "group",
                const std::string& lease_ms = "0") {
  REQUIRE(kAdopts);
  Node node{{}, make_pipe(), make_pipe(), {}};
  ChildSpec spec;
  const std::string job = unique_mark("x").substr(2);
  spec.argv = {DDP_PROCESS_HOST, "keeper", agent_mode, lease_ms, job, DDP_PROCESS_WORKER, mode};
  spec.out = node.output.write_end.get();
  spec.err = node.errors.write_end.get();
  node.keeper = start(std::move(spec), count + 1);
  for (Pipe* pipe : {&node.output, &node.errors})
    pipe->write_end.reset();
  for (char byte; read(node.output.read_end.get(), &byte, 1) == 1 && byte != '\n';)
    node.group += byte;
  return node;
}

pid_t agent_of(const Node& node) {
  pid_t agent = -1;
  for (const ProcessInfo& info : list_processes()) {
    if (info.parent == node.keeper.process.pid()) agent = info.pid;
  }
  REQUIRE(agent > 0);
  return agent;
}

}  // namespace

TEST_CASE("a killed agent: the keeper kills and removes the group") {
  kinds();
  for (const auto& [mode, count] : {std::pair{"daemon", 2}, std::pair{"family", 5}, std::pair{"user", 2}}) {
    Node node = start_node(mode, static_cast<std::size_t>(count));
    REQUIRE(fs::exists(node.group));
    REQUIRE(kill(agent_of(node), SIGKILL) == 0);
    CHECK(wait_end(node.keeper.process) == ExitStatus::exited(113));
    CHECK(node.keeper.all_gone());
    CHECK(!fs::exists(node.group));
    CHECK(read_all(node.errors.read_end.get()) ==
          "ddplaunchd keeper: the agent was killed by SIGKILL; killed " + std::to_string(count) +
              " leftover processes\n");
  }
}

namespace {

/// Runs a keeper whose agent reports the lines of `reports` and exits (process_host, "report").
ExitStatus run_reporting_keeper(const std::string& agent_mode, const std::string& reports) {
  Pipe input = make_pipe();
  ChildSpec spec;
  spec.argv = {DDP_PROCESS_HOST,           "keeper",           agent_mode, "0",
               unique_mark("x").substr(2), DDP_PROCESS_WORKER, "none"};
  spec.in = input.read_end.get();
  Started keeper = start(std::move(spec), 0);
  REQUIRE(write(input.write_end.get(), reports.data(), reports.size()) > 0);
  input.write_end.reset();
  return wait_end(keeper.process);
}

}  // namespace

TEST_CASE("the keeper ends also the groups of earlier attempts, and none that its agent dropped") {
  for (const Kind kind : kinds()) {
    // The keeper knows these processes only by their groups. This process' locks keep other tests away.
    Cgroup earlier = make(kind), dropped = make(kind), last = make(kind);
    Started in_earlier = start_in(earlier, 1, "rest"), in_dropped = start_in(dropped, 1, "rest"),
            in_last = start_in(last, 1, "rest");
    CHECK(run_reporting_keeper("report", "+" + earlier.path() + "\n+" + dropped.path() + "\n-" +
                                             dropped.path() + "\n+" + last.path() + "\n") ==
          ExitStatus::exited(3));
    for (Started* worker : {&in_earlier, &in_last})
      CHECK(wait_end(worker->process) == ExitStatus::signaled(SIGKILL));
    CHECK(!fs::exists(earlier.path()));
    CHECK(!fs::exists(last.path()));
    CHECK(!in_dropped.process.try_wait().has_value());
    CHECK(dropped.pids().size() == 1);
    dropped.kill();
    finish(in_dropped, dropped);
  }
}

TEST_CASE("the keeper's exit code shows a process that it could not end in an earlier attempt's group",
          "[root]") {
  if (geteuid() != 0) SKIP_TEST("only root can run as another user");
  for (const Kind kind : kinds()) {
    Cgroup earlier = make(kind), last = make(kind);
    Started worker = start_in(earlier, 1, "rest");
    CHECK(run_reporting_keeper("report-nobody", "+" + earlier.path() + "\n+" + last.path() + "\n") ==
          ExitStatus::exited(kExitProcessesLeft));
    CHECK(last.remove());
    earlier.kill();
    finish(worker, earlier);
  }
}

TEST_CASE("an agent past its lease does not see the ends of workers that its keeper kills") {
  kinds();
  Node node = start_node("family", 5, "silent", "1500");
  CHECK(wait_end(node.keeper.process) == ExitStatus::exited(113));
  CHECK(node.keeper.all_gone());
  CHECK(read_all(node.output.read_end.get()).empty());
}

TEST_CASE("a killed keeper: the agent kills and removes the group") {
  kinds();
  Node node = start_node("daemon", 2);
  const pid_t agent = agent_of(node);
  REQUIRE(kill(node.keeper.process.pid(), SIGKILL) == 0);
  CHECK(wait_end(node.keeper.process) == ExitStatus::signaled(SIGKILL));
  CHECK(node.keeper.all_gone());
  // The orphaned agent, adopted by this process, removes the group before it exits.
  siginfo_t info = {};
  REQUIRE(waitid(P_PID, static_cast<id_t>(agent), &info, WEXITED) == 0);
  CHECK(info.si_status == 7);
  CHECK(!fs::exists(node.group));
  reap_adopted({});
}

TEST_CASE("agent and keeper killed at once: the next attempt removes the group once it is empty") {
  kinds();
  Node node = start_node("daemon", 2);
  const pid_t agent = agent_of(node);
  auto held = Cgroup::open(node.group);  // keeps other tests away, which begin attempts, too
  REQUIRE(held.has_value());
  REQUIRE(kill(node.keeper.process.pid(), SIGSTOP) == 0);
  REQUIRE(kill(agent, SIGKILL) == 0);
  REQUIRE(kill(node.keeper.process.pid(), SIGKILL) == 0);
  CHECK(wait_end(node.keeper.process) == ExitStatus::signaled(SIGKILL));
  CHECK(fs::exists(node.group));
  CHECK(kill_own_tree().empty());  // this process adopted them
  CHECK(node.keeper.all_gone());
  reap_adopted({});
  { const Cgroup released = std::move(*held); }
  CHECK(is_swept(kinds().front(), node.group));
}

}  // namespace ddp::launcher

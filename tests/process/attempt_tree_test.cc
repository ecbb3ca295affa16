#include "launcher/keeper/attempt_tree.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "launcher/keeper/process_tree.h"
#include "tests/process/process_probe.h"

namespace ddp::launcher {
namespace {

using namespace process_test;
namespace fs = std::filesystem;

/// The tree of an agent whose keeper is this test.
class TreeBench {
 public:
  TreeBench() {
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    tree.set_job("tree");
  }
  /// Ends the attempt. Returns the processes that are left.
  std::vector<std::string> end() {
    std::optional<std::vector<LeftProcess>> left;
    asio::co_spawn(loop, tree.end(), [&left](const std::exception_ptr&, auto value) { left = value; });
    loop.restart();
    loop.run_for(kPatience);
    REQUIRE(left.has_value());
    std::vector<std::string> texts;
    for (const LeftProcess& process : *left)
      texts.push_back(process.text());
    return texts;
  }
  /// Returns the packets that the keeper has received, "KIND TEXT" each.
  std::vector<std::string> packets() {
    std::vector<std::string> texts;
    KeeperPacket packet;
    for (ssize_t size = 0; (size = recv(keeper_.get(), &packet, sizeof packet, MSG_DONTWAIT)) > 0;)
      texts.push_back(std::to_string(packet.kind) + ' ' +
                      std::string(packet.text, static_cast<std::size_t>(size) - kKeeperPacketHead));
    return texts;
  }
  /// Starts a worker in the group. A byte comes from each of its processes that is ready.
  ChildProcess start(const std::string& mode) {
    ChildSpec spec;
    spec.path = DDP_PROCESS_WORKER;
    spec.argv = {"worker", mode};
    spec.inherit = {{liveness.write_end.get(), 3}};
    if (tree.scope().cgroup) {
      spec.cgroup = tree.scope().cgroup->directory();
      spec.cgroup_procs = tree.scope().cgroup->procs();
    }
    auto child = spawn(spec);
    REQUIRE(child.has_value());
    liveness.write_end.reset();
    return std::move(*child);
  }

 private:
  UniqueFd make_socket() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    keeper_.reset(ends[0]);
    return UniqueFd(ends[1]);
  }
  UniqueFd keeper_;
  KeeperSocket link_{make_socket(), getppid()};

 public:
  asio::io_context loop{1};
  AttemptTree tree{loop.get_executor(), link_};
  Pipe liveness = make_pipe();
};

std::string text_of(int kind, const std::string& path) {
  return std::to_string(kind) + ' ' + path;
}

TEST_CASE("the end of an attempt ends what its workers left, and removes its control group") {
  TreeBench bench;
  const TreeScope& scope = bench.tree.begin(7);
  if (!scope.cgroup) SKIP_TEST("no control group can be made here: " + bench.tree.how());
  const std::string path = scope.cgroup->path();
  CHECK(fs::path(path).filename().string().starts_with("ddplaunch.tree.7."));
  CHECK(bench.tree.how() == "the workers run in the control group " + path);
  CHECK(bench.packets() == std::vector<std::string>{text_of(KeeperPacket::kCgroup, path)});
  ChildProcess worker = bench.start("daemon");
  REQUIRE(read_bytes(bench.liveness.read_end.get(), 2).size() == 2);
  REQUIRE(worker.send_signal(SIGKILL).has_value());
  CHECK(wait_end(worker) == ExitStatus::signaled(SIGKILL));
  CHECK(bench.end() == std::vector<std::string>{});
  CHECK(reaches_end(bench.liveness.read_end.get()));
  CHECK_FALSE(has_children());
  CHECK_FALSE(fs::exists(path));
  CHECK(scope.cgroup == nullptr);
  CHECK(bench.packets() == std::vector<std::string>{text_of(KeeperPacket::kCgroupGone, path)});
}

TEST_CASE("a control group that cannot be removed is left to the keeper") {
  TreeBench bench;
  const TreeScope& scope = bench.tree.begin(0);
  if (!scope.cgroup) SKIP_TEST("no control group can be made here: " + bench.tree.how());
  const std::string path = scope.cgroup->path();
  // The keeper's lock. A test that makes a group beside this one would remove a group that nobody holds.
  const auto keepers = Cgroup::open(path);
  REQUIRE(keepers.has_value());
  std::string below = path;
  for (int depth = 1; depth <= 17; ++depth)  // one more than is removed
    REQUIRE(mkdir((below += "/d").c_str(), 0755) == 0);
  CHECK(bench.end() == std::vector<std::string>{});
  CHECK(bench.packets() == std::vector<std::string>{text_of(KeeperPacket::kCgroup, path)});
  for (; below.size() >= path.size(); below.resize(below.size() - 2))
    CHECK(rmdir(below.c_str()) == 0);
}

TEST_CASE("without a control group the processes of an attempt are found by the process tree", "[root]") {
  if (geteuid() != 0) SKIP_TEST("only root can run as another user");
  CHECK(in_another_process([] {
          if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) return 1;
          TreeBench bench;
          if (bench.tree.begin(0).cgroup) return 2;
          if (!bench.tree.how().starts_with(
                  "no control group for the workers; they are found by the process tree ("))
            return 3;
          ChildProcess worker = bench.start("orphan");
          if (read_bytes(bench.liveness.read_end.get(), 1) != "r" || !wait_end(worker).success()) return 4;
          if (!bench.end().empty() || has_children() || !bench.packets().empty()) return 5;
          return reaches_end(bench.liveness.read_end.get()) ? 0 : 6;
        }) == 0);
}

/// Runs `make(executor)` on a loop of its own, and returns its result.
template <class Make>
auto run(Make make) {
  asio::io_context loop{1};
  decltype(make(loop.get_executor())) task = make(loop.get_executor());
  std::optional<typename decltype(task)::value_type> result;
  asio::co_spawn(loop, std::move(task), [&result](const std::exception_ptr&, auto value) { result = value; });
  loop.run_for(kPatience);
  REQUIRE(result.has_value());
  return *result;
}

SweptJob sweep(const std::string& job, bool stop = false) {
  return run([&](asio::any_io_executor executor) { return sweep_job(std::move(executor), job, &stop); });
}

std::size_t stop_all(const std::string& job, bool stop = false) {
  return run([&](asio::any_io_executor executor) { return stop_keepers(std::move(executor), job, &stop); });
}

/// Starts a keeper with an agent and a family of 5 marked processes.
Started start_node(const std::string& job) {
  return start({DDP_PROCESS_HOST, "keeper", "serve", "0", job, DDP_PROCESS_WORKER, "family"}, {}, 6);
}

std::string new_job() {
  return unique_mark("x").substr(2);
}

TEST_CASE("a sweep ends the processes of the job wherever they are, except children of this process") {
  REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
  const std::string job = new_job();
  const std::vector<std::string> mark{"DDPLAUNCH_JOB_ID=" + job, "LOCAL_RANK=0"};
  Started child = start({DDP_PROCESS_WORKER, "rest"}, mark, 1);
  CHECK(sweep(job).found == 0);
  Started elsewhere = start({DDP_PROCESS_HOST, "parent", DDP_PROCESS_WORKER, "rest"}, mark, 1);
  const int code = in_another_process([&] {
    const SweptJob stopped = sweep(job, true);
    if (stopped.found != 0 || stopped.left != std::vector<std::string>{"the search was ended"}) return 1;
    const SweptJob swept = sweep(job);
    // All processes of the user are searched; one of another test may be in the middle of an exec.
    const bool all =
        swept.left.empty() || swept.left == std::vector<std::string>{"some processes could not be examined"};
    return swept.found == 3 && all ? 0 : 2;
  });
  CHECK(code == 0);
  CHECK(wait_end(child.process) == ExitStatus::signaled(SIGKILL));
  CHECK(wait_end(elsewhere.process) == ExitStatus::signaled(SIGKILL));
  CHECK(elsewhere.all_gone());
  reap_adopted({});
}

TEST_CASE("the keepers of a job end with all that they guard, and those of another job live") {
  const std::string job = new_job(), other_job = new_job();
  Started node = start_node(job), second = start_node(job), other = start_node(other_job);
  CHECK(stop_all(job, true) == 0);
  CHECK_FALSE(node.process.peek().has_value());
  CHECK(stop_all(job) == 10);
  for (Started* one : {&node, &second}) {
    CHECK(wait_end(one->process) == ExitStatus::exited(5));
    CHECK(one->all_gone());
  }
  CHECK(stop_all(job) == 0);
  CHECK_FALSE(other.process.peek().has_value());
  CHECK(stop_all(other_job) == 5);
  CHECK(wait_end(other.process) == ExitStatus::exited(5));
}

/// The sweep of a lost node whose agent ran when `since` was read.
SweptJob sweep_lost(const std::string& job, std::set<pid_t> live_keepers, std::uint64_t since,
                    std::set<pid_t> own = {}) {
  const bool stop = false;
  return run([&](asio::any_io_executor executor) {
    return sweep_lost_node(std::move(executor), LostNode{job, std::move(live_keepers), since, std::move(own)},
                           &stop);
  });
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

/// Runs `orphan` in a process whose parent has ended, as those of a dead agent. Returns its pid, once it has
/// written a byte to descriptor `ready`.
template <class Run>
pid_t start_orphan(Run orphan) {
  Pipe pids = make_pipe();
  const pid_t parent = fork();
  if (parent == 0) {
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    const pid_t pid = fork();
    if (pid == 0) {
      setsid();
      const pid_t self = getpid();
      orphan(pids.write_end.get(), self);
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(parent, &status, 0) == parent);
  pid_t pid = 0;
  REQUIRE(read(pids.read_end.get(), &pid, sizeof pid) == sizeof pid);
  return pid;
}

/// Becomes a process that rests, with this variable or none in its environment.
[[noreturn]] void exec_sleep(const char* variable, const char* second = nullptr) {
  const char* argv[] = {"sleep", "300", nullptr};
  const char* env[] = {variable, second, nullptr};
  execve("/bin/sleep", const_cast<char**>(argv), const_cast<char**>(env));
  _exit(1);
}

/// Whether orphans of this process come to a reaper that a sweep knows, and not to this process.
struct NoReaper {
  NoReaper() { prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); }
  ~NoReaper() { prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }
};

bool names(const std::vector<std::string>& left, pid_t pid) {
  return std::any_of(left.begin(), left.end(),
                     [&](const std::string& text) { return text.starts_with(std::to_string(pid) + " ("); });
}

/// Counts the keepers whose processes are left. The rest of `left` may be orphans of tests beside this one.
std::ptrdiff_t keepers_in(const std::vector<std::string>& left) {
  return std::count_if(left.begin(), left.end(), [](const std::string& text) {
    return text.find(" below " + std::string(kKeeperName) + ' ') != std::string::npos;
  });
}

TEST_CASE("the sweep of a lost node ends its keeper, spares those of live nodes, and names others") {
  const std::string job = new_job();
  Started lost = start_node(job), live = start_node(job);
  // A keeper that the master does not know may belong to another job of this id.
  const SweptJob unknown = sweep_lost(job, {live.process.pid()}, now_ns());
  CHECK(unknown.found == 0);
  CHECK(keepers_in(unknown.left) == 1);
  CHECK_FALSE(lost.process.peek().has_value());
  const SweptJob swept = sweep_lost(job, {live.process.pid()}, now_ns(), {lost.process.pid()});
  CHECK(swept.found == 5);
  CHECK(keepers_in(swept.left) == 0);
  CHECK(wait_end(lost.process) == ExitStatus::exited(5));
  CHECK_FALSE(live.process.peek().has_value());
  CHECK(stop_all(job) == 5);
  CHECK(wait_end(live.process) == ExitStatus::exited(5));
}

TEST_CASE("below a process that calls itself a keeper, nothing is proven") {
  const NoReaper orphans_leave;
  const std::string job = new_job();
  const std::uint64_t since = now_ns();
  const std::string mark = "DDPLAUNCH_JOB_ID=" + job;
  const pid_t fake = start_orphan([&](int ready, pid_t self) {
    signal(SIGTERM, SIG_IGN);
    prctl(PR_SET_NAME, "ddp-keeper", 0, 0, 0);
    if (fork() == 0) {
      (void)!write(ready, &self, sizeof self);
      exec_sleep(mark.c_str(), "LOCAL_RANK=0");
    }
    for (;;)
      pause();
  });
  REQUIRE(wait_until([&] { return !live_processes_of(mark).empty(); }));
  CHECK(keepers_in(sweep_lost(job, {}, since).left) == 1);
  const SweptJob swept = sweep_lost(job, {}, since, {fake});
  CHECK(keepers_in(swept.left) == 0);
  CHECK_FALSE(names(swept.left, fake));
  CHECK(live_processes_of(mark).empty());
  CHECK(has_pid_ended(fake));
}

TEST_CASE("nothing is proven while an orphan could belong to the lost node") {
  const NoReaper orphans_leave;
  const std::string job = new_job();
  const std::uint64_t since = now_ns();
  const pid_t hidden = start_orphan([&](int ready, pid_t self) {
    (void)!write(ready, &self, sizeof self);
    exec_sleep(nullptr);
  });
  const auto is_sleep = [&] {
    const auto info = read_process(hidden);
    return info && info->comm == "sleep";
  };
  REQUIRE(wait_until(is_sleep));
  CHECK(names(sweep_lost(job, {}, since).left, hidden));
  usleep(20'000);                                                  // more than a tick of the kernel's clock
  CHECK_FALSE(names(sweep_lost(job, {}, now_ns()).left, hidden));  // it is older than the agent
  REQUIRE(kill(hidden, SIGKILL) == 0);
  if (geteuid() != 0) return;
  const pid_t foreign = start_orphan([&](int ready, pid_t self) {
    if (setuid(12345) != 0) _exit(1);
    (void)!write(ready, &self, sizeof self);
    for (;;)
      pause();
  });
  CHECK(names(sweep_lost(job, {}, since).left, foreign));
  REQUIRE(kill(foreign, SIGKILL) == 0);
}

TEST_CASE("an orphan without the job's mark is no proof, unless it has another job's") {
  const NoReaper orphans_leave;
  const std::uint64_t since = now_ns();
  const std::string job = new_job();
  const auto start = [](const std::string& variable) {
    const pid_t pid = start_orphan([&](int ready, pid_t self) {
      (void)!write(ready, &self, sizeof self);
      exec_sleep(variable.c_str());
    });
    REQUIRE(wait_until([&] { return !live_processes_of(variable).empty(); }));  // its exec is over
    return pid;
  };
  const pid_t changed = start("HOME=/" + job), rankless = start("DDPLAUNCH_JOB_ID=" + job);
  const pid_t other = start("DDPLAUNCH_JOB_ID=not-" + job);
  const std::vector<std::string> left = sweep_lost(job, {}, since).left;
  CHECK(names(left, changed));
  CHECK(names(left, rankless));
  CHECK_FALSE(names(left, other));
  for (const pid_t pid : {changed, rankless, other})
    REQUIRE(kill(pid, SIGKILL) == 0);
}

TEST_CASE("processes of other services, users and containers are in other units") {
  CHECK(systemd_unit("0::/user.slice/user-1000.slice/session-5.scope\n") == "/user.slice/user-1000.slice");
  CHECK(systemd_unit("1:name=systemd:/user.slice/user-0.slice/user@0.service/app.slice/a.service\n0::/\n") ==
        "/user.slice/user-0.slice");
  CHECK(systemd_unit("4:memory:/x\n0::/system.slice/ssh.service\n") == "/system.slice/ssh.service");
  CHECK(systemd_unit("0::/system.slice/docker-12ab.scope/init") == "/system.slice/docker-12ab.scope");
  for (const char* none : {"0::/", "0::/user.slice", "4:memory:/system.slice/ssh.service\n", ""})
    CHECK(systemd_unit(none) == "");
}

TEST_CASE("an agent does not end its own keeper") {
  const std::string job = new_job();
  CHECK(in_another_process([&] {
          prctl(PR_SET_NAME, "ddp-keeper", 0, 0, 0);
          return in_another_process([&] {
            prctl(PR_SET_NAME, "ddplaunchd", 0, 0, 0);
            Started worker =
                start({DDP_PROCESS_WORKER, "rest"}, {"DDPLAUNCH_JOB_ID=" + job, "LOCAL_RANK=0"}, 1);
            const bool none = stop_all(job) == 0;
            kill(worker.process.pid(), SIGKILL);
            wait_end(worker.process);
            return none ? 0 : 1;
          });
        }) == 0);
}

}  // namespace
}  // namespace ddp::launcher

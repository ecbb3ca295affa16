#include "launcher/keeper/keeper.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include <functional>
#include <tuple>

#include "launcher/keeper/process_tree.h"
#include "tests/process/process_probe.h"

namespace ddp::launcher {
namespace {

using namespace process_test;

/// A keeper with its agent and the agent's worker. All three carry `mark`.
struct Node {
  std::string mark;
  Pipe liveness;  ///< ends when no process is left, except the keeper
  Pipe input;     ///< the agent's stdin
  Pipe output;    ///< the agent's stdout
  Pipe errors;
  ChildProcess keeper;
  pid_t agent = -1;

  bool all_gone() { return reaches_end(liveness.read_end.get()) && live_processes_of(mark).empty(); }
  std::string said() { return read_all(errors.read_end.get()); }
  /// Waits for the keeper's end, and says if processes of the node are left.
  std::string end() {
    const std::string text = wait_end(keeper).text();
    return all_gone() ? text : text + ", and processes are left";
  }
  /// Stops the node as its master does.
  std::string stop() {
    REQUIRE(keeper.send_signal(SIGTERM).has_value());
    return end();
  }
};

const std::string kLost = ExitStatus::exited(kExitAgentLost).text();
const std::string kStopped = ExitStatus::exited(5).text();

/// `change` adjusts how the keeper is started.
Node start(const std::string& agent_mode, const std::string& lease_ms, const std::vector<std::string>& worker,
           const std::function<void(ChildSpec&)>& change = {}) {
  Node node{unique_mark("DDPTEST_NODE"), make_pipe(), make_pipe(), make_pipe(), make_pipe(), {}};
  ChildSpec spec;
  spec.path = DDP_PROCESS_HOST;
  spec.argv = {"host", "keeper", agent_mode, lease_ms, "job-" + node.mark, DDP_PROCESS_WORKER};
  spec.argv.insert(spec.argv.end(), worker.begin(), worker.end());
  spec.env = {node.mark};
  spec.in = node.input.read_end.get();
  spec.out = node.output.write_end.get();
  spec.err = node.errors.write_end.get();
  spec.inherit = {{node.liveness.write_end.get(), 3}};
  if (change) change(spec);
  auto keeper = spawn(spec);
  REQUIRE(keeper.has_value());
  node.keeper = std::move(*keeper);
  node.liveness.write_end.reset();
  node.output.write_end.reset();
  node.errors.write_end.reset();
  return node;
}

/// The keeper prepares itself beside the agent's start, and opens its signalfd last.
bool keeper_is_ready(pid_t keeper) {
  std::error_code error;
  const std::string fds = "/proc/" + std::to_string(keeper) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(fds, error))
    if (std::filesystem::read_symlink(entry, error) == "anon_inode:[signalfd]") return true;
  return false;
}

void find_agent(Node& node) {
  REQUIRE(wait_until([&node] {  // the worker of a "foreign" agent may be ready before it
    for (const ProcessInfo& info : live_processes_of(node.mark)) {
      const auto parent = read_process(info.parent);
      if (parent && parent->comm == "ddp-keeper" && info.comm == "process_host" &&
          keeper_is_ready(info.parent))
        node.agent = info.pid;
    }
    return node.agent > 0;
  }));
}

/// Starts a node, and waits until its agent and all processes of its worker ("family": 5) are ready.
Node start_ready(const std::string& agent_mode, const std::string& lease_ms, const std::string& worker,
                 std::size_t count, const std::function<void(ChildSpec&)>& change = {}) {
  CAPTURE(agent_mode, lease_ms, worker);
  Node node = start(agent_mode, lease_ms, {worker}, change);
  REQUIRE(read_bytes(node.liveness.read_end.get(), count + 1).size() == count + 1);
  find_agent(node);
  return node;
}

/// Long enough for an agent that a busy machine does not run for a while: it renews every 20 ms.
const std::string kLeaseMs = "4000";
constexpr std::chrono::milliseconds kLongerThanLease{5000};

pid_t find_worker(const Node& node) {
  for (const ProcessInfo& info : live_processes_of(node.mark))
    if (info.comm == "process_worker") return info.pid;
  return -1;
}

bool is_stopped(pid_t pid) {
  const auto process = read_process(pid);
  return process && process->state == 'T';
}

void freeze(pid_t pid) {
  REQUIRE((pid > 0 && kill(pid, SIGSTOP) == 0));
  REQUIRE(wait_until([pid] { return is_stopped(pid); }));
}

/// Returns whether a signal is in a set of the process (proc(5): ShdPnd, SigBlk, SigCgt).
bool has_signal(pid_t pid, const std::string& set, int number) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(set + ":"))
      return (std::stoull(line.substr(set.size() + 1), nullptr, 16) >> (number - 1) & 1) != 0;
  }
  return false;
}

/// Returns whether the process has taken this signal, which it blocks, and waits for another event.
bool has_handled(pid_t pid, int number) {
  if (has_signal(pid, "ShdPnd", number)) return false;
  const auto process = read_process(pid);  // read after the pending signals
  return process && process->state == 'S';
}

/// The CPU time of the process so far.
std::chrono::nanoseconds cpu_time(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  REQUIRE(clock_getcpuclockid(pid, &clock) == 0);
  REQUIRE(clock_gettime(clock, &time) == 0);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::string ended(std::size_t count) {
  return "; killed " + std::to_string(count) + (count == 1 ? " leftover process\n" : " leftover processes\n");
}

}  // namespace

TEST_CASE("an agent that exits passes its code on, and its remaining processes are killed") {
  const std::size_t descriptors = open_descriptors();
  {
    Node node = start("exit", "0", {"family"});
    REQUIRE(read_bytes(node.liveness.read_end.get(), 5).size() == 5);
    REQUIRE(write(node.input.write_end.get(), "x", 1) == 1);
    CHECK(node.end() == "exited 3");
    CHECK(node.said().empty());
  }
  CHECK(descriptors_come_down_to(descriptors));
}

TEST_CASE("an agent that hangs at its end is killed with its processes, after its lease if it has one") {
  for (const std::string lease_ms : {"0", "900"}) {
    CAPTURE(lease_ms);
    Node node = start("hang", lease_ms, {"family"});
    REQUIRE(read_bytes(node.liveness.read_end.get(), 5).size() == 5);
    const auto began = std::chrono::steady_clock::now();
    REQUIRE(write(node.input.write_end.get(), "x", 1) == 1);
    CHECK(node.end() == kLost);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    CHECK(took.count() >= (lease_ms == "0" ? 0.3 : 0.9));
    CHECK(node.said() == "ddplaunchd keeper: the agent's lease expired" + ended(6));
  }
}

TEST_CASE("the directory that an agent has reported is removed, however the agent ends") {
  for (const bool killed : {false, true}) {
    CAPTURE(killed);
    std::string directory = "/tmp/ddp-keeper-XXXXXX";
    REQUIRE(mkdtemp(directory.data()) != nullptr);
    std::ofstream(directory + "/worker.sock").close();
    Node node = start("report", "0", {"none"});
    REQUIRE(write(node.input.write_end.get(), (directory + "\n").c_str(), directory.size() + 1) > 0);
    REQUIRE(read_bytes(node.liveness.read_end.get(), 1) == "a");
    find_agent(node);
    if (killed) REQUIRE(kill(node.agent, SIGKILL) == 0);
    node.input.write_end.reset();
    CHECK(wait_end(node.keeper) == ExitStatus::exited(killed ? kExitAgentLost : 3));
    CHECK(std::filesystem::remove_all(directory) == 0);
    CHECK(node.all_gone());
  }
}

TEST_CASE("the whole tree of a killed agent is killed, also when no process reads stderr") {
  for (const bool is_read : {true, false}) {
    CAPTURE(is_read);
    Node node = start_ready("serve", "0", "family", 5);
    if (!is_read) node.errors.read_end.reset();
    REQUIRE(kill(node.agent, SIGKILL) == 0);
    CHECK(node.end() == "exited 113");
    if (is_read) CHECK(node.said() == "ddplaunchd keeper: the agent was killed by SIGKILL" + ended(5));
  }
}

TEST_CASE("a keeper that could not kill a process reports it by its exit code, for any end of the agent",
          "[root]") {
  if (geteuid() != 0) SKIP_TEST("only root can start a process of another user");
  for (const bool killed : {false, true}) {
    CAPTURE(killed);
    Node node = start("foreign", "0", {"rest"});
    REQUIRE(read_bytes(node.liveness.read_end.get(), 1) == "r");
    if (killed) {
      find_agent(node);
      REQUIRE(kill(node.agent, SIGKILL) == 0);
    } else {
      REQUIRE(write(node.input.write_end.get(), "x", 1) == 1);
    }
    CHECK(wait_end(node.keeper) == ExitStatus::exited(kExitProcessesLeft));
    CHECK(node.said().find("ddplaunchd keeper: could not kill process ") != std::string::npos);
    for (const ProcessInfo& info : live_processes_of(node.mark))
      kill(info.pid, SIGKILL);
    CHECK(node.all_gone());
  }
}

TEST_CASE("the whole tree of an agent killed during a fork storm is killed") {
  std::vector<std::string> worker;
  std::size_t bytes = 0;
  SECTION("the storm only grows") {
    worker = {"storm", "300"};
    bytes = 40;
  }
  SECTION("the storm forks and exits all the time") {
    worker = {"hop"};
    bytes = 2;
  }
  Node node = start("serve", "0", worker);
  REQUIRE(read_bytes(node.liveness.read_end.get(), bytes).size() == bytes);
  find_agent(node);
  REQUIRE(kill(node.agent, SIGKILL) == 0);
  CHECK(node.end() == kLost);
}

// The nodes wait side by side, since each of them waits for longer than a lease.
TEST_CASE("a lease ends when the agent does not renew it, unless it could not run either") {
  const std::string lease_ended = "ddplaunchd keeper: the agent's lease expired" + ended(6);
  Node renewed = start_ready("serve", kLeaseMs, "family", 5);
  Node paused = start_ready("serve", kLeaseMs, "stubborn", 1);
  Node frozen = start_ready("serve", kLeaseMs, "family", 5);
  // A scheduler suspends every process of a job, and continues them. 'Z': while the job's master runs.
  Node woken = start_ready("serve", kLeaseMs + "z", "stubborn", 1);
  Node resumed = start_ready("serve", kLeaseMs + "z", "stubborn", 1);
  Node suspended = start_ready("serve", kLeaseMs + "Z", "stubborn", 1);
  // A keeper that was frozen does not take its own pause for a silent agent.
  REQUIRE(paused.keeper.send_signal(SIGSTOP).has_value());
  const pid_t woken_worker = find_worker(woken), resumed_worker = find_worker(resumed);
  for (const auto& [name, worker, agent] :
       {std::tuple("woken", woken_worker, woken.agent), std::tuple("resumed", resumed_worker, resumed.agent),
        std::tuple("suspended", find_worker(suspended), suspended.agent)}) {
    INFO(name);
    freeze(worker);
    freeze(agent);
  }
  // The timers repeat: the keeper continues each time.
  for (int stop = 0; stop < 3; ++stop) {
    CHECK(!wait_readable(frozen.keeper.end_fd(), std::chrono::milliseconds(300)));
    REQUIRE(frozen.keeper.send_signal(SIGSTOP).has_value());
  }
  REQUIRE(kill(frozen.agent, SIGSTOP) == 0);
  REQUIRE(frozen.keeper.send_signal(SIGSTOP).has_value());

  CHECK(!wait_readable(renewed.keeper.end_fd(), kLongerThanLease));
  CHECK(!wait_readable(paused.keeper.end_fd(), {}));
  CHECK(!wait_readable(woken.keeper.end_fd(), {}));
  CHECK(!wait_readable(resumed.keeper.end_fd(), {}));
  CHECK(!is_stopped(paused.keeper.pid()));
  CHECK(paused.stop() == kStopped);
  CHECK(suspended.end() == kLost);
  CHECK(frozen.end() == kLost);
  CHECK(frozen.said() == lease_ended);

  const auto stopped_at = std::chrono::steady_clock::now();
  REQUIRE(kill(renewed.agent, SIGSTOP) == 0);
  for (const pid_t pid : {woken_worker, resumed_worker})
    REQUIRE(kill(pid, SIGCONT) == 0);
  REQUIRE(kill(resumed.agent, SIGCONT) == 0);
  CHECK(!wait_readable(renewed.keeper.end_fd(), std::chrono::milliseconds(500)));  // since the last renewal
  CHECK(!wait_readable(resumed.keeper.end_fd(), kLongerThanLease));
  CHECK(renewed.end() == kLost);
  CHECK(std::chrono::steady_clock::now() - stopped_at < std::chrono::seconds(20));
  CHECK(renewed.said() == lease_ended);
  CHECK(woken.end() == kLost);  // its agent stays stopped beside a worker that runs
  CHECK(resumed.stop() == kStopped);
}

TEST_CASE("a frozen agent without a lease is waited for") {
  Node node = start_ready("serve", "0", "stubborn", 1);
  REQUIRE(kill(node.agent, SIGSTOP) == 0);
  const auto before = cpu_time(node.keeper.pid());
  CHECK(!wait_readable(node.keeper.end_fd(), std::chrono::milliseconds(500)));
  CHECK(cpu_time(node.keeper.pid()) - before < std::chrono::milliseconds(100));  // it does not wait busily
  REQUIRE(kill(node.agent, SIGCONT) == 0);
  CHECK(node.stop() == kStopped);
}

TEST_CASE("after the kill of its keeper the agent stops its workers and exits, even a frozen one") {
  for (const bool is_frozen : {false, true}) {
    CAPTURE(is_frozen);
    Node node = start_ready("serve", "0", "family", 5);
    if (is_frozen) freeze(node.agent);
    REQUIRE(kill(node.keeper.pid(), SIGKILL) == 0);
    CHECK(node.end() == "killed by SIGKILL");
  }
}

TEST_CASE("a frozen keeper kills the tree when its agent is killed") {
  for (const bool agent_first : {false, true}) {
    CAPTURE(agent_first);
    Node node = start_ready("serve", "0", "family", 5);
    if (agent_first) REQUIRE(kill(node.agent, SIGKILL) == 0);
    REQUIRE(node.keeper.send_signal(SIGSTOP).has_value());
    if (!agent_first) REQUIRE(kill(node.agent, SIGKILL) == 0);
    CHECK(node.end() == kLost);
  }
}

TEST_CASE("a keeper that gets no timer from the kernel notices every end in time") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_SIGPENDING, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_SIGPENDING, &none) == 0);
  Node killed = start("serve", "60000", {"family"});
  Node hanging = start("hang", "0", {"family"});
  REQUIRE(setrlimit(RLIMIT_SIGPENDING, &before) == 0);
  REQUIRE(read_bytes(killed.liveness.read_end.get(), 6).size() == 6);
  REQUIRE(read_bytes(hanging.liveness.read_end.get(), 5).size() == 5);
  find_agent(killed);
  REQUIRE(kill(killed.agent, SIGKILL) == 0);
  REQUIRE(write(hanging.input.write_end.get(), "x", 1) == 1);
  for (Node* node : {&killed, &hanging}) {
    INFO((node == &killed ? "killed" : "hanging"));
    CHECK(node->end() == kLost);
  }
}

TEST_CASE("the end of the keeper's parent wakes a frozen agent, once") {
  Node node = start_ready("serve", "0", "stubborn", 1, [](ChildSpec& spec) {
    spec.path = "/bin/sh";
    spec.argv[0] = DDP_PROCESS_HOST;
    spec.argv.insert(spec.argv.begin(), {"sh", "-c", "\"$0\" \"$@\"; exit $?"});
  });
  freeze(node.agent);
  const pid_t keeper = read_process(node.agent)->parent;
  REQUIRE(node.keeper.send_signal(SIGKILL).has_value());
  CHECK(wait_end(node.keeper) == ExitStatus::signaled(SIGKILL));
  CHECK(wait_until([&] { return !is_stopped(node.agent); }));
  freeze(node.agent);
  CHECK(!wait_readable(node.liveness.read_end.get(), std::chrono::milliseconds(100)));
  CHECK(is_stopped(node.agent));
  REQUIRE(kill(keeper, SIGTERM) == 0);
  CHECK(wait_until([&] { return live_processes_of(node.mark).empty(); }));
}

TEST_CASE("a stop signal to the keeper reaches the agent, even a frozen one; killed by it: 128 + signal") {
  using Row = std::pair<std::string, int>;
  for (const auto& [mode, number] :
       {Row("serve", SIGTERM), Row("serve", SIGINT), Row("serve", SIGHUP), Row("frozen", SIGTERM),
        Row("deaf", SIGTERM), Row("deaf", SIGINT), Row("deaf", SIGHUP)}) {
    CAPTURE(mode, number);
    Node node = start_ready(mode == "deaf" ? mode : "serve", "0", "family", 5);
    if (mode == "frozen") freeze(node.agent);
    REQUIRE(node.keeper.send_signal(number).has_value());
    CHECK(node.end() == (mode == "deaf" ? ExitStatus::exited(128 + number).text() : kStopped));
    if (mode != "deaf") CHECK(node.said().empty());
  }
}

TEST_CASE("only the first stop signal is forwarded, and an agent killed after it is still lost") {
  Node node = start_ready("note", "0", "family", 5);
  REQUIRE(node.keeper.send_signal(SIGTERM).has_value());
  CHECK(read_bytes(node.output.read_end.get(), 3) == std::to_string(SIGTERM) + "\n");
  REQUIRE(node.keeper.send_signal(SIGINT).has_value());
  for (const pid_t pid : {node.keeper.pid(), node.agent})
    REQUIRE(wait_until([pid] { return has_handled(pid, SIGINT); }));
  REQUIRE(kill(node.agent, SIGKILL) == 0);
  CHECK(node.end() == kLost);
  CHECK(read_all(node.output.read_end.get()).empty());
  CHECK(node.said() == "ddplaunchd keeper: the agent was killed by SIGKILL" + ended(5));
}

TEST_CASE("a hang-up that the keeper's caller ignored is not forwarded, and a later stop signal is") {
  Node node = start_ready("note", "0", "rest", 1, [](ChildSpec& spec) {
    spec.path = "/bin/sh";
    spec.argv[0] = DDP_PROCESS_HOST;
    spec.argv.insert(spec.argv.begin(), {"sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""});
  });
  REQUIRE(node.keeper.send_signal(SIGHUP).has_value());
  REQUIRE(node.keeper.send_signal(SIGTERM).has_value());
  CHECK(read_bytes(node.output.read_end.get(), 3) == std::to_string(SIGTERM) + "\n");
  REQUIRE(kill(node.agent, SIGKILL) == 0);
  CHECK(node.end() == kLost);
}

TEST_CASE("the signals that Slurm sends to every process of a step end neither keeper nor agent") {
  Node node = start_ready("serve", "0", "stubborn", 1);
  for (const int number : {SIGUSR1, SIGUSR2}) {
    REQUIRE(node.keeper.send_signal(number).has_value());
    REQUIRE(kill(node.agent, number) == 0);
  }
  CHECK(node.stop() == kStopped);
}

TEST_CASE("the keeper has a descriptor for each process of a large tree, its agent keeps the soft limit") {
  Node node = start_ready("serve", "0", "rest", 1, [](ChildSpec& spec) { spec.nofile_soft = 64; });
  rlimit keeper{}, agent{};
  REQUIRE(prlimit(node.keeper.pid(), RLIMIT_NOFILE, nullptr, &keeper) == 0);
  REQUIRE(prlimit(node.agent, RLIMIT_NOFILE, nullptr, &agent) == 0);
  CHECK(agent.rlim_cur == 64);
  CHECK(keeper.rlim_cur == keeper.rlim_max);
  CHECK(node.stop() == kStopped);
}

TEST_CASE("the keeper has its own name, and holds no stdin, stdout or other descriptor of the agent") {
  Node node = start_ready("serve", "0", "rest", 1);
  const std::string proc = "/proc/" + std::to_string(node.keeper.pid());
  CHECK(read_process(node.keeper.pid())->comm == "ddp-keeper");
  CHECK(read_process(node.agent)->comm == "process_host");
  CHECK(has_signal(node.keeper.pid(), "SigCgt", SIGCONT));
  CHECK(has_signal(node.keeper.pid(), "SigBlk", SIGCHLD));  // a signalfd reports it
  for (const char* set : {"SigCgt", "SigBlk"})  // process_host itself blocks stop signals, not these
    CHECK_FALSE((has_signal(node.agent, set, SIGCONT) || has_signal(node.agent, set, SIGCHLD)));
  struct stat ours {
  }, null{}, theirs{};
  REQUIRE(stat("/dev/null", &null) == 0);
  for (const char* fd : {"/fd/0", "/fd/1"}) {
    REQUIRE(stat((proc + fd).c_str(), &theirs) == 0);
    CHECK(theirs.st_rdev == null.st_rdev);
  }
  REQUIRE(fstat(node.liveness.read_end.get(), &ours) == 0);
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    REQUIRE(stat(entry.path().c_str(), &theirs) == 0);
    CHECK(theirs.st_ino != ours.st_ino);
  }
  // The remote side must see the end of the agent's stdout when the agent ends, not later.
  REQUIRE(node.keeper.send_signal(SIGTERM).has_value());
  CHECK(reaches_end(node.output.read_end.get()));
  CHECK(wait_end(node.keeper) == ExitStatus::exited(5));
  CHECK(node.all_gone());
}

}  // namespace ddp::launcher

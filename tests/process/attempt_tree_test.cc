#include "launcher/keeper/attempt_tree.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <utility>

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
  KeeperLink link_{make_socket(), getppid()};

 public:
  asio::io_context loop{1};
  AttemptTree tree{loop.get_executor(), link_};
  Pipe liveness = make_pipe();
};

std::string text_of(int kind, const std::string& path) {
  return std::to_string(kind) + ' ' + path;
}

}  // namespace

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
  const pid_t pid = fork();
  if (pid == 0) {
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(1);
    TreeBench bench;
    if (bench.tree.begin(0).cgroup) _exit(2);
    if (!bench.tree.how().starts_with(
            "no control group for the workers; they are found by the process tree ("))
      _exit(3);
    ChildProcess worker = bench.start("orphan");
    if (read_bytes(bench.liveness.read_end.get(), 1) != "r" || !wait_end(worker).success()) _exit(4);
    if (!bench.end().empty() || has_children() || !bench.packets().empty()) _exit(5);
    _exit(reaches_end(bench.liveness.read_end.get()) ? 0 : 6);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace ddp::launcher

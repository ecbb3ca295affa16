// A process of the machine whose /proc/PID/environ blocks its reader forever.
#include <sys/prctl.h>
#include <sys/wait.h>

#include "launcher/keeper/process_tree.h"
#include "tests/process/process_probe.h"

namespace ddp::launcher {
namespace {

using namespace process_test;
using Clock = std::chrono::steady_clock;

/// Longer than the search's limit for one process, shorter than the process stays stuck.
constexpr std::chrono::seconds kLimit{4};

struct Process {
  Pipe liveness;
  ChildProcess process;
};

Process start(const std::string& mode, const std::vector<std::string>& env = {}) {
  Process started{make_pipe(), {}};
  ChildSpec spec;
  spec.path = DDP_PROCESS_WORKER;
  spec.argv = {"worker", mode};
  spec.env = env;
  spec.inherit = {{started.liveness.write_end.get(), 3}};
  auto child = spawn(spec);
  REQUIRE(child.has_value());
  started.process = std::move(*child);
  started.liveness.write_end.reset();
  return started;
}

/// The stuck process and its file-system server.
class Stuck {
 public:
  Stuck() : stuck_(start("stuck")) { said_ = read_bytes(stuck_.liveness.read_end.get(), 1); }
  /// The end of the server lets the exec continue.
  ~Stuck() {
    for (const ProcessInfo& info : list_processes())
      if (info.comm == "stuck_server" && info.parent == pid()) kill(info.pid, SIGKILL);
  }
  pid_t pid() const { return stuck_.process.pid(); }
  bool possible() const { return said_ == "r"; }

 private:
  Process stuck_;
  std::string said_;
};

}  // namespace

TEST_CASE("a process that blocks readers of its environment delays no kill of the tree and ends no search") {
  const Stuck stuck;
  if (!stuck.possible()) SKIP_TEST("needs /dev/fuse and the right to mount");
  const std::size_t descriptors = open_descriptors();
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  Process stranger = start("stubborn", {job, "LOCAL_RANK=0"});
  REQUIRE(read_bytes(stranger.liveness.read_end.get(), 1) == "r");
  const auto began = Clock::now();
  const pid_t other = fork();
  if (other == 0) {  // neither the marked worker nor the stuck process is in this child's tree
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    Process ours = start("family");
    if (read_bytes(ours.liveness.read_end.get(), 5).size() != 5) _exit(2);
    TreeKill kill({job.substr(job.find('=') + 1), {}}, kKillBound);
    Clock::duration tree_gone{};
    if (!step_to_end(kill, std::chrono::milliseconds(5), [&] {
          if (tree_gone == Clock::duration{} && ours.process.peek()) tree_gone = Clock::now() - began;
        }))
      _exit(6);
    if (tree_gone == Clock::duration{} || tree_gone > kLimit) _exit(3);
    if (!kill.left().empty()) _exit(4);
    if (kill.complete()) _exit(7);
    _exit(kill.found() == 6 ? 0 : 5);
  }
  int status = 0;
  REQUIRE(waitpid(other, &status, 0) == other);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(Clock::now() - began < kLimit);
  CHECK(wait_end(stranger.process) == ExitStatus::signaled(SIGKILL));
  reap_adopted(std::vector<pid_t>{stuck.pid()});
  stranger.liveness.read_end.reset();
  stranger.process = {};
  CHECK(open_descriptors() <= descriptors);
}

TEST_CASE("a search continues behind the process that blocks its reader") {
  const Stuck stuck;
  if (!stuck.possible()) SKIP_TEST("needs /dev/fuse and the right to mount");
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  std::vector<Process> marked;
  for (const char* rank : {"LOCAL_RANK=3", "LOCAL_RANK=x", "RANK=1"}) {
    marked.push_back(start("rest", {job, rank}));
    REQUIRE(read_bytes(marked.back().liveness.read_end.get(), 1) == "r");
  }
  const auto began = Clock::now();
  std::vector<MarkedProcess> found;
  {
    MarkSearch search(job.substr(job.find('=') + 1), {marked[0].process.pid(), stuck.pid(),
                                                      marked[1].process.pid(), marked[2].process.pid()});
    while (!search.is_over()) {
      REQUIRE(Clock::now() - began < kLimit);
      search.wait(std::chrono::milliseconds(100));
      for (MarkedProcess& process : search.take_found())
        found.push_back(std::move(process));
    }
    CHECK(search.skipped());
  }
  REQUIRE(found.size() == 2);
  CHECK(found[0].pid == marked[0].process.pid());
  CHECK(found[0].local_rank == 3);
  CHECK(found[1].pid == marked[1].process.pid());
  CHECK(found[1].local_rank == -1);
  CHECK(waitpid(-1, nullptr, WNOHANG | __WCLONE) == -1);  // no reader is left
}

}  // namespace ddp::launcher

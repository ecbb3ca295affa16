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

/// The stuck process and its file-system server.
class Stuck {
 public:
  Stuck() : stuck_(start({DDP_PROCESS_WORKER, "stuck"}, {}, 0)) {
    said_ = read_bytes(stuck_.liveness.read_end.get(), 1);
  }
  /// The end of the server lets the exec continue.
  ~Stuck() {
    for (const ProcessInfo& info : list_processes())
      if (info.comm == "stuck_server" && info.parent == pid()) kill(info.pid, SIGKILL);
  }
  pid_t pid() const { return stuck_.process.pid(); }
  bool possible() const { return said_ == "r"; }

 private:
  Started stuck_;
  std::string said_;
};

}  // namespace

TEST_CASE("a process that blocks readers of its environment delays no kill of the tree and ends no search") {
  const Stuck stuck;
  if (!stuck.possible()) SKIP_TEST("needs /dev/fuse and the right to mount");
  const std::size_t descriptors = open_descriptors();
  const std::string job = unique_mark("DDPLAUNCH_JOB_ID");
  Started stranger = start({DDP_PROCESS_WORKER, "stubborn"}, {job, "LOCAL_RANK=0"}, 1);
  const auto began = Clock::now();
  // Neither the marked worker nor the stuck process is in this child's tree.
  const int code = in_another_process([&] {
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    Started ours = start({DDP_PROCESS_WORKER, "family"}, {}, 5);
    TreeKill kill({job.substr(job.find('=') + 1), {}}, kKillBound);
    Clock::duration tree_gone{};
    if (!step_to_end(kill, std::chrono::milliseconds(5), [&] {
          if (tree_gone == Clock::duration{} && ours.process.peek()) tree_gone = Clock::now() - began;
        }))
      return 6;
    if (tree_gone == Clock::duration{} || tree_gone > kLimit) return 3;
    if (!kill.left().empty()) return 4;
    if (kill.complete()) return 7;
    return kill.found() == 6 ? 0 : 5;
  });
  CHECK(code == 0);
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
  std::vector<Started> marked;
  for (const char* rank : {"LOCAL_RANK=3", "LOCAL_RANK=x", "RANK=1"})
    marked.push_back(start({DDP_PROCESS_WORKER, "rest"}, {job, rank}, 1));
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

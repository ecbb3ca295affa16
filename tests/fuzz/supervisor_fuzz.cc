// Agents obey, or send arbitrary messages at any time; the input decides which. The Supervisor must not
// crash: the build checks optionals, indices and iterators. A job that has lost all nodes must end.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "launcher/report/exit_report.h"
#include "launcher/supervisor/supervisor.h"
#include "tests/fuzz/require.h"

using namespace ddp;
using namespace ddp::launcher;
using namespace ddp::rendezvous;
using namespace std::chrono_literals;

namespace {

class FuzzBytes {
 public:
  FuzzBytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  unsigned below(unsigned limit) {
    if (left_ == 0) return 0;
    --left_;
    return *data_++ % limit;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

JobSpec spec_from(FuzzBytes& bytes) {
  JobSpec spec;
  spec.job_id = "job";
  const int nodes = 2 + static_cast<int>(bytes.below(2));
  for (int i = 0; i < nodes; ++i) {
    remote::Host host;
    host.name = std::string(1, static_cast<char>('a' + i));
    host.slots = 1 + static_cast<int>(bytes.below(2));
    spec.hosts.push_back(host);
  }
  const unsigned flags = bytes.below(16);
  spec.min_nodes = (flags & 1) != 0 ? nodes : 1;
  spec.max_nodes = nodes;
  spec.scale_up_now = (flags & 2) != 0;
  spec.fence = (flags & 4) != 0 ? FenceMode::kOff : FenceMode::kRank0;
  spec.max_restarts = (flags & 8) != 0 ? 1 : 9;
  spec.hang_timeout = 5s;
  for (const auto action : {WatchRule::Action::kReport, WatchRule::Action::kHang, WatchRule::Action::kFail})
    spec.watch.push_back({"line", action});
  spec.job_dir = "/job";
  return spec;
}

class FuzzedJob {
 public:
  explicit FuzzedJob(FuzzBytes& bytes) : bytes_(bytes), spec_(spec_from(bytes)), supervisor_(spec_) {
    nodes_.resize(spec_.hosts.size());
    carry_out(supervisor_.start(now_));
    for (std::size_t node = 0; node < nodes_.size(); ++node)
      come_up(node);
  }

  void run() {
    for (int steps = 0; !bytes_.empty() && steps < 2'000; ++steps)
      one_step();
    for (int i = 0; i < 10'000 && !supervisor_.finished(); ++i) {
      for (std::size_t node = 0; node < nodes_.size(); ++node)
        go(node, true);
      tick();
    }
    require(supervisor_.finished());
    (void)make_exit_report(supervisor_.end());
  }

 private:
  struct FuzzedNode {
    std::uint32_t incarnation = 0;
    bool up = false;
    bool called = false;  ///< the supervisor has ordered a new start of the node
    std::deque<Message> answers;
    std::uint32_t attempt = 0;  ///< the last attempt that the node was ordered to spawn
    std::uint32_t local_world = 0;
  };

  void one_step() {
    const std::size_t node = bytes_.below(static_cast<unsigned>(nodes_.size()));
    switch (bytes_.below(16)) {
      case 0:
      case 1: return unusual_word(node);
      case 2: return exit_of(node);
      case 3: return go(node, bytes_.below(2) == 0);
      case 4:
        if (nodes_[node].called) come_up(node);
        return;
      case 5:
        now_ += std::chrono::seconds(bytes_.below(40));
        for (std::size_t i = 0; i < nodes_.size(); ++i)
          if (nodes_[i].up) step(job::NodeHeartbeat{i, nodes_[i].incarnation});
        return step(job::Tick{});
      case 6: return tick();
      case 7:
        if (bytes_.below(16) == 0) step(job::UserSignal{bytes_.below(2) == 0 ? SIGINT : SIGUSR1});
        if (bytes_.below(8) == 0)
          step(job::WatchedLine{node, nodes_[node].attempt, bytes_.below(8), bytes_.below(3), "line", now_});
        return;
      default: obey(node); return;
    }
  }

  void step(const job::Event& event) { carry_out(supervisor_.step(event, now_)); }

  void tick() {
    if (const auto due = supervisor_.deadline()) now_ = std::max(now_, *due);
    step(job::Tick{});
  }

  void come_up(std::size_t index) {
    FuzzedNode& node = nodes_[index];
    node = FuzzedNode{};
    node.incarnation = ++incarnations_;
    node.up = true;
    Hello hello;
    hello.hostname = spec_.hosts[index].name;
    hello.machine_id = "one";
    hello.cpus = 4;
    hello.pid_namespace = 1;
    hello.interfaces = {{"lo", "127.0.0.1", 8, true, true}};
    step(job::NodeUp{index, hello, "", node.incarnation});
  }

  void go(std::size_t index, bool dead) {
    FuzzedNode& node = nodes_[index];
    if (!std::exchange(node.up, false)) return;
    node.answers.clear();
    const Error error{ErrorCode::kLinkLost, "gone", 0};
    step(job::LinkEnded{index, error, node.incarnation});
    step(job::NodeGone{index, error, dead, node.incarnation});
  }

  void obey(std::size_t index) {
    FuzzedNode& node = nodes_[index];
    if (!node.up || node.answers.empty()) return;
    const Message message = std::move(node.answers.front());
    node.answers.pop_front();
    say(index, message);
  }

  void say(std::size_t index, const Message& message) {
    step(job::FromNode{index, message, now_, 0ns, nodes_[index].incarnation});
  }

  void exit_of(std::size_t index) {
    if (!nodes_[index].up) return;
    WorkerExited exited;
    exited.attempt = nodes_[index].attempt;
    const RankAssignment* assignment = supervisor_.nodes().assignment(index);
    exited.rank =
        assignment == nullptr ? bytes_.below(6) : static_cast<std::uint32_t>(assignment->first_rank);
    exited.pid = 1;
    exited.code = static_cast<std::uint8_t>(bytes_.below(2));
    say(index, exited);
  }

  /// Sends any message of the current attempt or a neighbouring one, regardless of the node's state.
  void unusual_word(std::size_t index) {
    if (!nodes_[index].up) return;
    const std::uint32_t attempt =
        supervisor_.nodes().attempt() + (bytes_.below(8) == 0 ? 1U : 0U) - (bytes_.below(8) == 0);
    const std::uint32_t rank = bytes_.below(7);
    Inspection inspection;
    inspection.attempt = attempt;
    inspection.rank = rank;
    inspection.last = bytes_.below(2) == 0;
    inspection.only_stacks_follow = bytes_.below(4) == 0;
    inspection.state = "sleeping";
    WorkerExited exited;
    exited.attempt = attempt;
    exited.rank = rank;
    exited.pid = 1;
    exited.signal = bytes_.below(2) == 0 ? SIGTERM : SIGSEGV;
    const auto code = bytes_.below(2) == 0 ? ErrorCode::kLinkLost : ErrorCode::kRefused;
    const Message words[] = {Quiet{attempt, bytes_.below(2) == 0, 0, bytes_.below(2) == 0},
                             WorkersGreeted{attempt},
                             WorkersReady{attempt},
                             WorkerInTrouble{attempt, rank, "x", {0}},
                             AttemptRevoked{attempt, {{rank, true, 7}}},
                             AttemptEnded{attempt, rank == 6 ? 1U : 0U, "x"},
                             Refused{code, 0, "refused"},
                             StoreOpened{attempt, 1},
                             ProbeResult{attempt, "127.0.0.1", ""},
                             JobAccepted{"p", {}, "", true},
                             WorkerStarted{attempt, rank, 1, 0, attempt},
                             WorkerEvidence{attempt, rank, "x", "", ""},
                             inspection,
                             exited};
    say(index, words[bytes_.below(std::size(words))]);
  }

  void carry_out(const job::Actions& actions) {
    for (const job::Action& action : actions) {
      if (const auto* drop = std::get_if<job::Disconnect>(&action)) {
        nodes_[drop->node].up = nodes_[drop->node].called = false;
      } else if (const auto* recall = std::get_if<job::Recall>(&action)) {
        nodes_[recall->node].up = false;
        nodes_[recall->node].called = true;
      } else if (const auto* send = std::get_if<job::ToNode>(&action)) {
        if (nodes_[send->node].up)
          std::visit([&](const auto& order) { answer(nodes_[send->node], order); }, send->message);
      }
    }
  }

  // answer() appends the messages with which an obedient agent answers an order.
  static void answer(FuzzedNode& node, const JobStart& order) {
    node.answers.emplace_back(JobAccepted{"p", {}, "", !order.predecessor.empty()});
  }
  static void answer(FuzzedNode& node, const OpenStore& order) {
    node.answers.emplace_back(StoreOpened{order.attempt, 29500});
  }
  static void answer(FuzzedNode& node, const Probe& order) {
    node.answers.emplace_back(ProbeResult{order.attempt, order.addresses.at(0), ""});
  }
  static void answer(FuzzedNode& node, const Spawn& order) {
    node.attempt = order.attempt;
    node.local_world = order.local_world_size;
    node.answers.emplace_back(WorkersGreeted{order.attempt});
    node.answers.emplace_back(WorkersReady{order.attempt});
  }
  static void answer(FuzzedNode& node, const Revoke& order) {
    AttemptRevoked revoked{order.attempt, {}};
    for (std::uint32_t local = 0; local < node.local_world; ++local)
      revoked.survivors.push_back({local, true, 7});
    node.answers.emplace_back(revoked);
  }
  static void answer(FuzzedNode& node, const Stop& order) {
    node.answers.emplace_back(AttemptEnded{order.attempt, 0, ""});
  }
  static void answer(FuzzedNode& node, const Inspect& order) {
    Inspection last;
    last.attempt = order.attempt;
    last.last = true;
    node.answers.emplace_back(last);
  }
  template <class Order>
  static void answer(FuzzedNode&, const Order&) {}

  FuzzBytes& bytes_;
  const JobSpec spec_;
  Supervisor supervisor_;
  Supervisor::Time now_ = 1000s;
  std::vector<FuzzedNode> nodes_;
  std::uint32_t incarnations_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzBytes bytes(data, std::min<std::size_t>(size, 4096));
  FuzzedJob(bytes).run();
  return 0;
}

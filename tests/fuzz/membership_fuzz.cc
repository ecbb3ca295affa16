// Derives a history of the job from arbitrary bytes: nodes join, fail and vanish, stale and foreign messages
// arrive, and time passes or jumps. InvariantChecker checks the actions of Membership after each event.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <vector>

#include "rendezvous/membership/membership.h"

using namespace ddp::rendezvous;
using namespace std::chrono_literals;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

class FuzzBytes {
 public:
  FuzzBytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  int below(int limit) {
    if (left_ == 0) return 0;
    --left_;
    return *data_++ % limit;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

MembershipRules rules_from(FuzzBytes& bytes) {
  MembershipRules rules;
  rules.job = "job";
  const int hosts = 1 + bytes.below(6);
  for (int i = 0; i < hosts; ++i)
    rules.hosts.push_back(std::string(1, static_cast<char>('a' + i)));
  rules.max_nodes = 1 + bytes.below(hosts);
  rules.min_nodes = 1 + bytes.below(rules.max_nodes);
  const int flags = bytes.below(256);
  rules.recall = (flags & 2) != 0;
  rules.scale_up_now = (flags & 4) != 0;
  rules.spares = bytes.below(3);
  rules.max_restarts = bytes.below(5);
  rules.host_faults = bytes.below(4);
  rules.join_limit = 20s;
  return rules;
}

/// Checks the guarantees of Membership that its driver relies on.
class InvariantChecker {
 public:
  explicit InvariantChecker(const MembershipRules& rules) : rules_(rules) {}

  void take(const Membership& membership, const Membership::Actions& actions) {
    for (const MemberAction& action : actions) {
      require(!ended_ || std::holds_alternative<Drop>(action));
      if (const auto* begin = std::get_if<Begin>(&action)) {
        check_begin(*begin);
      } else if (const auto* stop = std::get_if<StopAttempt>(&action)) {
        require(running_ && stop->attempt + 1 == attempts_ && !stop->reason.empty());
        growths_ += stop->cause == StopCause::kScaleUp;
        // No attempt follows the user's stop, so no worker may survive it.
        require(!stop->another || stop->cause != StopCause::kUser);
        require(stop->cause != StopCause::kScaleUp || stop->another);
        running_ = false;
      } else if (const auto* drop = std::get_if<Drop>(&action)) {
        require(!drop->reason.empty());
      } else if (const auto* notice = std::get_if<NotifyUser>(&action)) {
        require(!notice->text.empty());
      } else if (const auto* end = std::get_if<EndJob>(&action)) {
        require(!end->reason.empty());
        ended_ = true;
      }
    }
    require(ended_ == (membership.state() == Membership::State::kEnded));
    require(membership.deadline().has_value() != ended_);
    require(membership.restarts() <= rules_.max_restarts);
    require(attempts_ <= 1 + static_cast<std::uint32_t>(membership.restarts()) + growths_);
    require(membership.present() >= 0 && membership.present() <= rules_.max_nodes + rules_.spares);
  }
  bool ended() const { return ended_; }

 private:
  void check_begin(const Begin& begin) {
    require(!running_ && begin.attempt == attempts_++);
    running_ = true;
    const auto nodes = static_cast<int>(begin.world.assignments.size());
    require(nodes >= rules_.min_nodes && nodes <= rules_.max_nodes);
    std::set<HostNumber> hosts;
    int ranks = 0;
    for (int i = 0; i < nodes; ++i) {
      const RankAssignment& assignment = begin.world.assignments[static_cast<std::size_t>(i)];
      require(assignment.node_rank == i && assignment.first_rank == ranks && assignment.local_world_size > 0);
      require(hosts.insert(assignment.host).second);
      ranks += assignment.local_world_size;
    }
    require(ranks == begin.world.world_size);
  }

  const MembershipRules& rules_;
  std::uint32_t attempts_ = 0;
  std::uint32_t growths_ = 0;
  bool running_ = false;
  bool ended_ = false;
};

MemberEvent event_from(FuzzBytes& bytes) {
  switch (bytes.below(18)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return Joined{bytes.below(5), bytes.below(8) == 0 ? "named" : "",
                    static_cast<std::uint32_t>(bytes.below(4))};
    case 4:
    case 5:
      return Heartbeat{};
    case 6:
      return LinkLost{"link", bytes.below(2) == 0};
    case 7:
      return Absent{"absent"};
    case 8:
      return WorkerFailed{"rank", bytes.below(8) == 0};
    case 9:
    case 10:
    case 11:
      return NodeEnded{bytes.below(8) == 0 ? 1U : 0U};
    case 12:
      return NodeRefused{"refused", bytes.below(2) == 0};
    case 13:
      return AttemptProgress{};
    case 14:
      return AttemptFailed{"hang", bytes.below(4) == 0};
    case 15:
    case 16:
      return NodeWaits{};
    default:
      return bytes.below(8) == 0 ? MemberEvent{UserStop{"user"}} : MemberEvent{Tick{}};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzBytes bytes(data, std::min<std::size_t>(size, 4096));
  const MembershipRules rules = rules_from(bytes);
  Membership membership(rules);
  InvariantChecker checker(rules);
  Membership::Time now = 1s;
  checker.take(membership, membership.step({}, Tick{}, now));
  std::vector<std::uint32_t> incarnations(64, 0);
  while (!bytes.empty()) {
    const int time = bytes.below(16);
    if (time == 15) {
      now += std::chrono::seconds(bytes.below(100));  // as after a suspend
    } else if (time > 7 && membership.deadline()) {
      now = std::max(now, *membership.deadline());
      checker.take(membership, membership.step({}, Tick{}, now));
    }
    const auto host = static_cast<HostNumber>(bytes.below(10));
    const MemberEvent event = event_from(bytes);
    const int defect = bytes.below(32);
    if (std::holds_alternative<Joined>(event) && defect > 3) ++incarnations[host];
    const Sender from{defect == 0 ? "other" : "job",
                      membership.attempt() + (defect == 1 ? 1U : 0U) - (defect == 2 ? 1U : 0U), host,
                      incarnations[host] - (defect == 3 ? 1U : 0U)};
    checker.take(membership, membership.step(from, event, now));
  }
  // Without further events all nodes are lost, the join limit passes, and the job must end.
  for (int i = 0; i < 10'000 && membership.deadline(); ++i) {
    now = std::max(now, *membership.deadline());
    checker.take(membership, membership.step({}, Tick{}, now));
  }
  require(checker.ended());
  return 0;
}

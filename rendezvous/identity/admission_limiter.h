#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/identity/link_refusal.h"

namespace ddp::rendezvous {

struct AdmissionLimits {
  std::size_t waiting = 256;  ///< unproven connections at once; further ones stay in the kernel's queue
  std::size_t silent_per_address = 64;         ///< of one address without a good hello
  std::chrono::milliseconds deadline{10'000};  ///< from accept to proof
  /// When all places, or those of its address, are taken: who is older gives way, else the newcomer is
  /// closed. A good hello gives eight.
  std::chrono::milliseconds grace{500};
  unsigned failures = 20;  ///< failed proofs of one address in `window`, after which it …
  std::chrono::milliseconds window{10'000};
  std::chrono::milliseconds ban{2'000};  ///< … is closed unread for so long
};

/// Who may wait before it has proved who it is, for how long, and who must give way (sans-IO). An address is
/// a string that stands for one, or for a whole IPv6 /64. The driver's duties:
///   1. ask `admit` for each accepted connection; close it when that gives a reason;
///   2. tell `greeted` when its hello is one of ours: it counts in all then, but not against its address,
///      from which many nodes may come at once (a test, a translation of addresses);
///   3. tell `ended` when it has proved itself or has gone, and `failed` before when its proof was wrong;
///   4. accept no more while `full`;
///   5. at `next_turn`, which may have come with `admit`, close what `take_overdue` gives.
class AdmissionLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = std::uint64_t;
  struct Overdue {
    Id id;
    LinkRefusal why;  ///< kSilent or kEvicted
  };

  explicit AdmissionLimiter(AdmissionLimits limits) : limits_(limits) {}

  /// Ids grow. Nothing: admitted.
  std::optional<LinkRefusal> admit(Id id, const std::string& address, Time now);
  void greeted(Id id);
  void ended(Id id);
  void failed(const std::string& address, Time now);
  bool full() const { return waiting_.size() >= limits_.waiting; }
  std::size_t waiting() const { return waiting_.size(); }

  std::optional<Time> next_turn() const;
  /// Those are counted no more.
  std::vector<Overdue> take_overdue(Time now);

 private:
  struct PendingConnection {
    std::string address;
    Time since;
    bool greeted = false;
  };
  struct AddressCounts {
    std::size_t all = 0;
    std::size_t silent = 0;
  };
  struct Failures {
    unsigned count = 0;
    Time since;
    Time banned_until;
  };
  /// Room for one more of the address, whose oldest may have to make it. False: there is none.
  bool make_room(const std::string& address, Time now);
  /// Who it is, and from when on. Only when somebody waits.
  std::pair<Id, Time> next_to_evict() const;

  AdmissionLimits limits_;
  std::map<Id, PendingConnection> waiting_;  ///< by age
  std::map<std::string, AddressCounts> per_address_;
  std::map<std::string, Failures> failures_;
  std::vector<Overdue> displaced_;  ///< counted no more, and not yet taken
};

/// Keeps strangers from filling the log (sans-IO): the first line of each reason and address in a minute, and
/// so many lines in all; the rest is counted, and the next line of the reason says how many.
template <class Reason>
class LineLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kWindow{60};
  static constexpr std::size_t kLines = 20;

  /// The line as it is to be logged; nothing when it is only counted.
  std::optional<std::string> pass(Reason why, const std::string& address, std::string line, Time now) {
    if (now >= since_ + kWindow) {
      since_ = now;
      said_.clear();
    }
    if (said_.size() >= kLines || !said_.emplace(why, address).second) {
      ++unsaid_[why];
      return std::nullopt;
    }
    if (const std::size_t count = std::exchange(unsaid_[why], 0); count > 0)
      line += " (" + std::to_string(count) + " more like it were not logged)";
    return line;
  }

 private:
  Time since_{};
  std::set<std::pair<Reason, std::string>> said_;
  std::map<Reason, std::size_t> unsaid_;
};
using RefusalLog = LineLimit<LinkRefusal>;

}  // namespace ddp::rendezvous

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

#include "rendezvous/link/link_hello.h"

namespace ddp::rendezvous {

struct AdmissionLimits {
  std::size_t waiting = 256;            ///< unproven connections at once; others stay in the kernel's queue
  std::size_t silent_per_address = 64;  ///< per address, without a good hello
  std::chrono::milliseconds deadline{10'000};  ///< from accept to the hello behind the proof
  /// Once a limit above is reached, a connection older than this is evicted. A good hello extends the time
  /// eightfold. If all connections of an address are younger, its new connection is closed.
  std::chrono::milliseconds grace{500};
  unsigned failures = 20;  ///< failed proofs of one address in `window` that cause a ban
  std::chrono::milliseconds window{10'000};
  std::chrono::milliseconds ban{2'000};  ///< connections of that address are closed unread for this time
};

/// Decides which unproven connections may wait, how long, and which are evicted (sans-IO). An address is a
/// string for one address or for a whole IPv6 /64. The driver's duties:
///   1. call `admit` for each accepted connection; close it when that returns a reason;
///   2. call `greeted` when the connection has sent a valid ddplaunch hello. It still counts in total, but
///      not against its address, which many nodes may share (a test, address translation);
///   3. call `ended` when the connection has proved its identity and sent its hello, or has closed; call
///      `failed` before that when the proof was wrong;
///   4. accept no more while `full`;
///   5. at `next_turn`, which `admit` may have changed, close the connections from `take_overdue`.
class AdmissionLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = std::uint64_t;
  struct Overdue {
    Id id;
    LinkRefusal why;  ///< kSilent or kEvicted
  };

  explicit AdmissionLimiter(AdmissionLimits limits) : limits_(limits) {}

  /// Ids must increase. Returns nothing when admitted, else the reason.
  std::optional<LinkRefusal> admit(Id id, const std::string& address, Time now);
  void greeted(Id id);
  void ended(Id id);
  void failed(const std::string& address, Time now);
  bool full() const { return waiting_.size() >= limits_.waiting; }
  std::size_t waiting() const { return waiting_.size(); }

  std::optional<Time> next_turn() const;
  /// The returned connections are no longer counted.
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
  /// Makes room for one more connection of the address, if necessary by evicting its oldest. Returns false if
  /// there is no room.
  bool make_room(const std::string& address, Time now);
  /// Returns the next connection to evict, and the time of it. At least one connection must wait.
  std::pair<Id, Time> next_to_evict() const;

  AdmissionLimits limits_;
  std::map<Id, PendingConnection> waiting_;  ///< ordered by age
  std::map<std::string, AddressCounts> per_address_;
  std::map<std::string, Failures> failures_;
  std::vector<Overdue> displaced_;  ///< evicted, not counted, and not yet returned
};

/// Keeps peers from filling the log (sans-IO). Per minute it passes the first line of each reason and
/// address, and at most kLines lines. It counts the rest; the next line of the same reason shows the count.
class RefusalLog {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kWindow{60};
  static constexpr std::size_t kLines = 20;

  /// Returns the line to log, or nothing if the line is only counted.
  std::optional<std::string> pass(LinkRefusal why, const std::string& address, std::string line, Time now);

 private:
  Time since_{};
  std::set<std::pair<LinkRefusal, std::string>> said_;
  std::map<LinkRefusal, std::size_t> unsaid_;
};

}  // namespace ddp::rendezvous

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Bounds what one node may send (sans-IO), so that a misbehaving node cannot exhaust the master's memory or
/// disk. The limits on notices and inspections are far above what our agent sends. The class also counts
/// output for the credit. Output beyond the credit is no error, because agents send the contents of the
/// workers' pipes at a stop. The console and the files bound the output (ConsoleQueue, JobWriter).
class NodeLimits {
 public:
  static constexpr std::size_t kNotices = 5'000;            ///< notices of one job that are shown or kept
  static constexpr std::size_t kNoticeBytes = 4u << 10;     ///< bytes of one notice; the rest is cut
  static constexpr std::size_t kInspected = 64u << 20;      ///< bytes of inspections in one attempt
  static constexpr std::size_t kWorkerUpdates = 64u << 20;  ///< bytes of worker starts and ends in one job
  static constexpr std::size_t kHelloInterfaces = 4'096;    ///< addresses of one node

  /// A new link to the node begins; the counts for the whole job continue.
  void begin_incarnation() { taken_ = {}; }
  /// Counts a message. kProtocol: the message exceeds what our agent would send, and the caller ends the
  /// link.
  Result<> admit(const rendezvous::Message& message);
  /// Returns the credit of a stream to give back, at most what one message can carry.
  std::uint32_t give_back(std::uint8_t stream);
  /// Returns the bytes of a stream that are not yet given back.
  std::uint64_t taken(std::uint8_t stream) const { return taken_[stream - 1u]; }

  enum class NoticeDecision : std::uint8_t { kYes, kLast, kNo };
  /// Decides for each Notice whether it is shown; none is shown after kLast.
  NoticeDecision notice();

 private:
  std::array<std::uint64_t, 2> taken_{};
  std::size_t notices_ = 0;
  std::size_t worker_updates_ = 0;
  std::uint32_t inspected_attempt_ = 0;
  std::size_t inspected_ = 0;
};

}  // namespace ddp::launcher

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// What one node may send (sans-IO): notices and findings within bounds that no agent of ours comes near, and
/// the count of its output for the credit. Output beyond the credit is no error: at a stop agents send what
/// the workers' pipes hold. Its bound is that of the console and the files (ConsoleQueue, JobWriter). A
/// misbehaving node cannot exhaust the master's memory or disk.
class NodeLimits {
 public:
  static constexpr std::size_t kNotices = 5'000;         ///< of one job, that are shown or kept
  static constexpr std::size_t kNoticeBytes = 4u << 10;  ///< of one of them; the rest is cut
  static constexpr std::size_t kInspected = 64u << 20;   ///< bytes of one attempt
  static constexpr std::size_t kWorkerUpdates = 64u
                                                << 20;    ///< bytes of starts and ends of workers, of one job
  static constexpr std::size_t kHelloInterfaces = 4'096;  ///< addresses of one node

  /// A new link to the node begins: what counts for the whole job goes on.
  void begin_incarnation() { taken_ = {}; }
  /// Counts what came. kProtocol: it is more than an agent of ours would send, and the link is to be ended.
  Result<> admit(const rendezvous::Message& message);
  /// What of a stream's credit is to be given back: all that a message can say.
  std::uint32_t give_back(std::uint8_t stream);
  /// Of a stream, not yet given back.
  std::uint64_t taken(std::uint8_t stream) const { return taken_[stream - 1u]; }

  enum class NoticeDecision : std::uint8_t { kYes, kLast, kNo };
  /// For each Notice: whether it is told; after kLast none is.
  NoticeDecision notice();

 private:
  std::array<std::uint64_t, 2> taken_{};
  std::size_t notices_ = 0;
  std::size_t worker_updates_ = 0;
  std::uint32_t inspected_attempt_ = 0;
  std::size_t inspected_ = 0;
};

}  // namespace ddp::launcher

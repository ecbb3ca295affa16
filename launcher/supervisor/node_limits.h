#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Bounds what one node may send (sans-IO), so that a compromised node cannot exhaust the master's memory or
/// disk. The codec bounds each field; this class bounds their sum. All limits are far above what our agent
/// sends. The class also counts output for the credit. Output beyond the credit is no error, because agents
/// send the contents of the workers' pipes at a stop. The console and the files bound the output
/// (ConsoleQueue, JobWriter).
class NodeLimits {
 public:
  static constexpr std::size_t kNotices = 5'000;            ///< notices of one job that are shown or kept
  static constexpr std::size_t kNoticeBytes = 4u << 10;     ///< bytes of one notice; the rest is cut
  static constexpr std::size_t kInspected = 64u << 20;      ///< bytes of inspections in one attempt
  static constexpr std::size_t kWorkerUpdates = 64u << 20;  ///< bytes of worker starts and ends in one job
  static constexpr std::uint32_t kWorkers = 4'096;          ///< workers, and GPUs, of one node
  static constexpr std::uint32_t kCpus = 65'536;
  /// Bytes of messages that the master keeps of all nodes in one attempt, and the least for each node.
  static constexpr std::size_t kKeptOfAll = 64u << 20;
  static constexpr std::size_t kKeptAtLeast = 128u << 10;
  static constexpr std::size_t kKeptAtMost = 8u << 20;

  explicit NodeLimits(std::size_t nodes = 1)
      : kept_limit_(std::clamp(kKeptOfAll / std::max<std::size_t>(nodes, 1), kKeptAtLeast, kKeptAtMost)) {}

  /// A new link to the node begins; the counts for the whole job continue.
  void begin_incarnation() { taken_ = {}; }

  /// kDropFirst: as kDrop, and the user has not been told in this attempt. kCut: keep what cut() leaves.
  enum class Admission : std::uint8_t { kTake, kDrop, kDropFirst, kCut };
  /// Counts a message. Diagnostics beyond the limit of the attempt are dropped, but evidence and ends,
  /// which name a worker's cause of death, are only cut. kProtocol: the message exceeds what our agent would
  /// send, and the caller ends the link.
  Result<Admission> admit(const rendezvous::Message& message);
  /// Shortens the texts of a WorkerEvidence or WorkerExited. A cut exception still begins with its type and
  /// message.
  static void cut(rendezvous::Message& message);
  /// Bytes of evidence that the master keeps of this node in one attempt.
  std::size_t kept_limit() const { return kept_limit_; }
  /// Returns the credit of a stream to give back, at most what one message can carry.
  std::uint32_t give_back(std::uint8_t stream);
  /// Returns the bytes of a stream that are not yet given back.
  std::uint64_t taken(std::uint8_t stream) const { return taken_[stream - 1u]; }

  enum class NoticeDecision : std::uint8_t { kYes, kLast, kNo };
  /// Decides for each Notice whether it is shown; none is shown after kLast.
  NoticeDecision notice();

 private:
  bool keep(std::uint32_t attempt, std::size_t bytes);
  Admission keep_or_drop(std::uint32_t attempt, std::size_t bytes);

  std::size_t kept_limit_;
  std::array<std::uint64_t, 2> taken_{};
  std::size_t notices_ = 0;
  std::size_t worker_updates_ = 0;
  std::uint32_t inspected_attempt_ = 0;
  std::size_t inspected_ = 0;
  std::uint32_t kept_attempt_ = 0;
  std::size_t kept_ = 0;
  std::size_t cut_ = 0;   ///< bytes of cut evidence
  bool dropped_ = false;  ///< something was dropped in kept_attempt_
};

}  // namespace ddp::launcher

#include "launcher/supervisor/node_limits.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {

namespace {

constexpr std::size_t kShort = 2u << 10;  ///< bytes of a text of cut evidence
constexpr std::size_t kShortest = 256;    ///< of the text of a cut end

Error beyond(const char* what) {
  return Error{ErrorCode::kProtocol, std::string("it ") + what, 0};
}

}  // namespace

/// An agent finishes one attempt before the next. Attempt numbers that go back and forth would have no bound.
bool NodeLimits::keep(std::uint32_t attempt, std::size_t bytes) {
  if (attempt > kept_attempt_) {
    kept_attempt_ = attempt;
    kept_ = cut_ = 0;
    dropped_ = false;
  }
  const bool fits = attempt == kept_attempt_ && kept_ + bytes <= kept_limit_;
  if (fits) kept_ += bytes;
  return fits;
}

NodeLimits::Admission NodeLimits::keep_or_drop(std::uint32_t attempt, std::size_t bytes) {
  if (keep(attempt, bytes)) return Admission::kTake;
  return std::exchange(dropped_, true) ? Admission::kDrop : Admission::kDropFirst;
}

Result<NodeLimits::Admission> NodeLimits::admit(const rendezvous::Message& message) {
  using namespace rendezvous;
  if (const auto* output = std::get_if<Output>(&message)) {
    if (output->stream != 1 && output->stream != 2) return beyond("sent output of an unknown stream");
    taken_[output->stream - 1u] += output->data.size();
  } else if (const auto* inspection = std::get_if<Inspection>(&message)) {
    if (inspection->attempt > inspected_attempt_) inspected_ = 0;
    const bool stale = inspection->attempt < std::exchange(inspected_attempt_, inspection->attempt);
    inspected_ += frame_size(message);
    if (stale || inspected_ > kInspected) return beyond("sent more inspection data than allowed");
    // The text goes to a file.
    if (!inspection->last)
      return keep_or_drop(inspection->attempt, sizeof(Inspection) + inspection->state.size());
  } else if (std::holds_alternative<WorkerStarted>(message) ||
             std::holds_alternative<WorkerExited>(message)) {
    worker_updates_ += frame_size(message);
    if (worker_updates_ > kWorkerUpdates)
      return beyond("reported more starts and ends of workers than allowed");
    const auto* exited = std::get_if<WorkerExited>(&message);
    if (exited != nullptr && !keep(exited->attempt, exited->text.size())) return Admission::kCut;
  } else if (const auto* evidence = std::get_if<WorkerEvidence>(&message)) {
    const std::size_t size = frame_size(message);
    if (keep(evidence->attempt, size)) return Admission::kTake;
    cut_ += std::min(size, 3 * kShort);
    if (cut_ <= kept_limit_) return Admission::kCut;
    return std::exchange(dropped_, true) ? Admission::kDrop : Admission::kDropFirst;
  } else if (const auto* dump = std::get_if<WorkerCollectives>(&message)) {
    return keep_or_drop(dump->attempt, frame_size(message));
  } else if (const auto* trouble = std::get_if<WorkerInTrouble>(&message)) {
    return keep_or_drop(trouble->attempt, frame_size(message));
  } else if (const auto* hello = std::get_if<Hello>(&message)) {
    if (hello->workers > kWorkers || hello->gpus > kWorkers || hello->cpus > kCpus)
      return beyond("reported more workers, GPUs or CPUs than allowed");
    if (frame_size(message) > kKeptAtLeast / 2) return beyond("sent a longer hello than allowed");
  } else if (std::holds_alternative<JobAccepted>(message)) {
    if (frame_size(message) > kKeptAtLeast / 2) return beyond("sent a longer answer than allowed");
  }
  return Admission::kTake;
}

void NodeLimits::cut(rendezvous::Message& message) {
  const auto shorten = [](std::string& text, std::size_t most) {
    if (text.size() > most) text = text.substr(0, most);  // resize would keep the memory
  };
  if (auto* evidence = std::get_if<rendezvous::WorkerEvidence>(&message)) {
    for (std::string* text : {&evidence->oom, &evidence->xid, &evidence->error_json})
      shorten(*text, kShort);
  } else {
    shorten(std::get<rendezvous::WorkerExited>(message).text, kShortest);
  }
}

std::uint32_t NodeLimits::give_back(std::uint8_t stream) {
  std::uint64_t& taken = taken_[stream - 1u];
  const auto bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(taken, std::numeric_limits<std::uint32_t>::max()));
  taken -= bytes;
  return bytes;
}

NodeLimits::NoticeDecision NodeLimits::notice() {
  if (notices_ > kNotices) return NoticeDecision::kNo;
  return ++notices_ > kNotices ? NoticeDecision::kLast : NoticeDecision::kYes;
}

}  // namespace ddp::launcher

#include "launcher/supervisor/node_limits.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

namespace ddp::launcher {

Result<> NodeLimits::admit(const rendezvous::Message& message) {
  if (const auto* output = std::get_if<rendezvous::Output>(&message)) {
    if (output->stream != 1 && output->stream != 2)
      return Error{ErrorCode::kProtocol, "it sent output of an unknown stream", 0};
    taken_[output->stream - 1u] += output->data.size();
  } else if (const auto* inspection = std::get_if<rendezvous::Inspection>(&message)) {
    // An agent finishes one attempt before the next. Attempt numbers that go back and forth would have no
    // bound.
    if (inspection->attempt > inspected_attempt_) inspected_ = 0;
    const bool stale = inspection->attempt < std::exchange(inspected_attempt_, inspection->attempt);
    inspected_ += inspection->text.size() + inspection->state.size() + 64;
    if (stale || inspected_ > kInspected)
      return Error{ErrorCode::kProtocol, "it sent more inspection data than allowed", 0};
  } else if (std::holds_alternative<rendezvous::WorkerStarted>(message) ||
             std::holds_alternative<rendezvous::WorkerExited>(message)) {
    const auto* exited = std::get_if<rendezvous::WorkerExited>(&message);
    worker_updates_ += 64 + (exited != nullptr ? exited->text.size() : 0);
    if (worker_updates_ > kWorkerUpdates)
      return Error{ErrorCode::kProtocol, "it reported more starts and ends of workers than allowed", 0};
  } else if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    if (hello->interfaces.size() > kHelloInterfaces)
      return Error{ErrorCode::kProtocol, "it reported more interfaces than allowed", 0};
  }
  return {};
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

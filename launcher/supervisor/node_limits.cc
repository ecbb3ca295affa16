#include "launcher/node_limits.h"

#include <utility>
#include <variant>

namespace ddp::launcher {

Result<> NodeLimits::admit(const rendezvous::Message& message) {
  if (const auto* output = std::get_if<rendezvous::Output>(&message)) {
    if (output->stream != 1 && output->stream != 2)
      return Error{ErrorCode::kProtocol, "it sends output of a stream that there is not", 0};
    std::uint32_t& taken = taken_[output->stream - 1u];
    if (output->data.size() > credit_ - taken)
      return Error{ErrorCode::kProtocol, "it sends more output than it was given credit for", 0};
    taken += static_cast<std::uint32_t>(output->data.size());
  } else if (const auto* inspection = std::get_if<rendezvous::Inspection>(&message)) {
    if (inspection->attempt != inspected_attempt_) inspected_ = 0;
    inspected_attempt_ = inspection->attempt;
    inspected_ += inspection->text.size() + inspection->state.size() + 64;
    if (inspected_ > kInspected)
      return Error{ErrorCode::kProtocol, "it tells more of its workers than can be", 0};
  } else if (std::holds_alternative<rendezvous::WorkerStarted>(message) ||
             std::holds_alternative<rendezvous::WorkerExited>(message)) {
    const auto* exited = std::get_if<rendezvous::WorkerExited>(&message);
    worker_news_ += 64 + (exited != nullptr ? exited->text.size() : 0);
    if (worker_news_ > kWorkerNews)
      return Error{ErrorCode::kProtocol, "it tells more starts and ends of workers than can be", 0};
  } else if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    if (hello->interfaces.size() > kHelloInterfaces)
      return Error{ErrorCode::kProtocol, "it names more interfaces than can be", 0};
  }
  return {};
}

std::uint32_t NodeLimits::give_back(std::uint8_t stream) {
  return std::exchange(taken_[stream - 1u], 0);
}

NodeLimits::Shown NodeLimits::notice() {
  if (notices_ > kNotices) return Shown::kNo;
  return ++notices_ > kNotices ? Shown::kLast : Shown::kYes;
}

}  // namespace ddp::launcher

#include "apps/train/collectives/communicator.h"

#include <poll.h>

#include <future>

namespace ddp::train {

namespace {

/// The wait polls in slices, because the awaited work has no descriptor.
constexpr int kSliceMs = 5;

bool is_readable_within(int fd, int milliseconds) {
  pollfd slot{fd, POLLIN, 0};
  return ::poll(&slot, 1, milliseconds) > 0;
}

}  // namespace

Result<std::string> find_shared(PeerDirectory& directory, const std::string& name,
                                std::chrono::milliseconds timeout, const std::string& me,
                                const std::string& missing) {
  auto text = directory.find(name, timeout);
  if (!text && text.error().code == ErrorCode::kTimeout) return error_of(ErrorCode::kTimeout, me, missing);
  return within(me, std::move(text));
}

bool is_revoked(int interrupt) {
  return interrupt >= 0 && is_readable_within(interrupt, 0);
}

Error revoked_error() {
  return {ErrorCode::kCancelled, "revoked"};
}

Result<bool> wait_until_through(const IsThrough& through, std::chrono::milliseconds longest, int interrupt) {
  if (interrupt < 0) return through(longest);
  const auto deadline = std::chrono::steady_clock::now() + longest;
  for (;;) {
    if (through(std::chrono::milliseconds(0))) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    if (is_readable_within(interrupt, kSliceMs)) return revoked_error();
  }
}

Result<> share_outcome(Communicator& world, const Result<>& mine) {
  std::string text = mine ? "" : mine.error().text;
  const std::uint64_t head[] = {!mine, mine ? 0 : static_cast<std::uint64_t>(mine.error().code), text.size()};
  const auto heads = world.all_gather(head);
  if (!heads) return mine ? heads.error() : mine;
  for (std::size_t at = 0; at < heads->size(); at += 3) {
    if ((*heads)[at] == 0) continue;
    text.resize((*heads)[at + 2]);
    auto done = world.broadcast(std::as_writable_bytes(std::span(text)), static_cast<int>(at / 3));
    if (!done) return mine ? done : mine;
    return Error{static_cast<ErrorCode>((*heads)[at + 1]), text};
  }
  return {};
}

Result<> meet_until(Communicator& world, const IsThrough& through, std::chrono::milliseconds sign,
                    int interrupt) {
  for (bool all = false; !all;) {
    const auto done = DDP_TRY(wait_until_through(through, sign, interrupt));
    const auto ranks = DDP_TRY(gather_values(world, std::uint64_t{done}));
    all = std::all_of(ranks.begin(), ranks.end(), [](std::uint64_t one) { return one != 0; });
  }
  return {};
}

Result<> share_outcome(Communicator& world, const std::function<Result<>()>& work,
                       std::chrono::milliseconds sign, int interrupt) {
  std::future<Result<>> outcome = std::async(std::launch::async, work);
  const IsThrough through = [&outcome](std::chrono::milliseconds longest) {
    return outcome.wait_for(longest) == std::future_status::ready;
  };
  DDP_TRY(meet_until(world, through, sign, interrupt));
  return share_outcome(world, outcome.get());
}

}  // namespace ddp::train

#include "apps/train/shared_outcome.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ddp::train {

Result<> share_outcome(Communicator& world, const Result<>& mine) {
  const bool failed = world.rank() == 0 && !mine;
  std::string text = failed ? mine.error().text : "";
  struct {
    std::uint64_t failed, code, size;
  } head{failed, failed ? static_cast<std::uint64_t>(mine.error().code) : 0, text.size()};
  auto done = world.broadcast(std::as_writable_bytes(std::span(&head, 1)), 0);
  if (!done || head.failed == 0) return done;
  text.resize(head.size);
  if (done = world.broadcast(std::as_writable_bytes(std::span(text)), 0); !done) return done;
  return Error{static_cast<ErrorCode>(head.code), text};
}

}  // namespace ddp::train

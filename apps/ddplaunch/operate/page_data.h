#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "launcher/control/job_registry.h"

namespace ddp {

/// The most bytes of one stream that a page shows.
inline constexpr std::size_t kPageOutputBytes = 64u << 10;

/// Returns the state of a job as JSON: the keys of its registration, and while it runs its status. Asks its
/// ddplaunch, and waits one second at most.
std::string page_state(const launcher::JobEntry& job);

/// One stream of a rank in an attempt.
struct OutputStream {
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  bool is_stderr = false;
};
/// Returns the last bytes of a stream, from the begin of a line. kSystem: there is no such file.
Result<std::string> page_output(const launcher::JobEntry& job, const OutputStream& place);

/// Returns all that a report about a job shows, as JSON: state, events, and the last output of ranks that
/// failed and of rank 0.
std::string report_data(const launcher::JobEntry& job);

}  // namespace ddp

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace ddp {

/// What `ddplaunch top` asks and does. Each call may block for a second; `stacks` for longer.
struct TopJob {
  std::function<bool()> runs;
  /// As `ddplaunch status --json` prints it; null: the job does not answer, and sets `error`.
  std::function<nlohmann::ordered_json(Error& error)> status;
  std::function<void(std::uint32_t rank, std::size_t lines)> print_output;  ///< the last lines, to stdout
  std::function<void(std::uint32_t rank)> print_stacks;
  std::function<Result<>()> stop;
};

/// Draws the job once a second on the terminal of stdout until it has ended or the user quits, and obeys keys
/// if stdin is a terminal, too. The terminal is as before when it returns, when a signal ends or stops the
/// process, and while it prints output or stacks. Returns whether the job has ended.
bool show_top(const TopJob& job);

}  // namespace ddp

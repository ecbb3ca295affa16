#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// A worker's exception, as PyTorch's `@record` leaves it in TORCHELASTIC_ERROR_FILE. Any field may be empty.
struct WorkerException {
  std::string type;                       ///< "ValueError"
  std::string message;                    ///< "boom"; of an exception without a type all that was written
  std::string frame;                      ///< where it was raised: "train.py:12 in main: x = f(y)"
  std::string trace;                      ///< the whole traceback
  std::optional<std::int64_t> unix_time;  ///< by the node's wall clock, in whole seconds: told, never trusted
};

/// Reads the shapes that torch has written since 1.9: {"message": {"message": "ValueError: boom",
/// "extraInfo": {"py_callstack": …, "timestamp": "1700000000"}}} and {"message": "ValueError: boom"}. A text
/// that was cut short gives what stands before the cut. Nothing when there is no message.
std::optional<WorkerException> parse_error_json(std::string_view text);

/// "ValueError: boom" in its two parts; without a type the first is empty.
WorkerException split_exception(std::string_view text);

/// The innermost frame of a Python traceback, as WorkerException::frame; empty when there is none.
std::string last_frame(std::string_view trace);

}  // namespace ddp::launcher

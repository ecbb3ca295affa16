#pragma once

#include <chrono>
#include <string>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "launcher/report/exit_code.h"

namespace ddp::launcher {

using OrderedJson = nlohmann::ordered_json;  ///< keys keep the order of docs/users/report.md and check.md

inline double in_seconds(std::chrono::nanoseconds time) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(time).count()) / 1e6;
}

inline OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

/// The error's name in docs/users/exit_codes.md.
inline std::string error_kind(const Error& error) {
  std::string kind = "Internal";
  for (const ExitCodeRow& row : exit_code_table()) {
    if (row.error == error.code) kind = row.kind;
  }
  return kind;
}

}  // namespace ddp::launcher

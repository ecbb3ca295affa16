#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/gpu/checks.h"

namespace ddp::train::gpu {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

bool CheckLog::all_good() const {
  return errors_.empty() && !all_.empty() &&
         std::ranges::all_of(all_, [](const Finding& f) { return f.good(); });
}

std::string CheckLog::json(const std::string& check) const {
  std::string out =
      "{\"check\":" + quoted(check) + ",\"ok\":" + (all_good() ? "true" : "false") + ",\"errors\":[";
  for (std::size_t i = 0; i < errors_.size(); ++i)
    out += (i == 0 ? "" : ",") + quoted(errors_[i]);
  out += "],\"figures\":[";
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const Finding& diagnostic = all_[i];
    out += std::string(i == 0 ? "" : ",") + "{\"name\":" + quoted(diagnostic.name) +
           ",\"figure\":" + number(diagnostic.figure);
    if (diagnostic.limit != kNone) out += ",\"limit\":" + number(diagnostic.limit);
    out += std::string(",\"ok\":") + (diagnostic.good() ? "true" : "false") + "}";
  }
  return out + "]}";
}

}  // namespace ddp::train::gpu

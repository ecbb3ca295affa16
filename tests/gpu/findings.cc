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

bool Findings::all_good() const {
  return errors_.empty() && !all_.empty() &&
         std::ranges::all_of(all_, [](const Finding& f) { return f.good(); });
}

std::string Findings::json(const std::string& check) const {
  std::string out =
      "{\"check\":" + quoted(check) + ",\"ok\":" + (all_good() ? "true" : "false") + ",\"errors\":[";
  for (std::size_t i = 0; i < errors_.size(); ++i)
    out += (i == 0 ? "" : ",") + quoted(errors_[i]);
  out += "],\"figures\":[";
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const Finding& finding = all_[i];
    out += std::string(i == 0 ? "" : ",") + "{\"name\":" + quoted(finding.name) +
           ",\"figure\":" + number(finding.figure);
    if (finding.limit != kNone) out += ",\"limit\":" + number(finding.limit);
    out += std::string(",\"ok\":") + (finding.good() ? "true" : "false") + "}";
  }
  return out + "]}";
}

}  // namespace ddp::train::gpu

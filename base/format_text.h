#pragma once

#include <string>

namespace ddp {

/// Formats as printf does, without a bound on the length.
[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...);

}  // namespace ddp

#pragma once

#include <string>
#include <string_view>

namespace ddp {

/// Text that came from outside (a path, an option's value), fit for one line of a terminal: unsafe characters
/// (Utf8Character) are spelled out (\n, \t, \x1b, \u202e, \U000e0001). All else stays, so that twice is the
/// same as once; a backslash is not doubled.
std::string one_line(std::string_view text);

}  // namespace ddp

#pragma once

#include <string>
#include <string_view>

namespace ddp {

/// Text that came from outside (a path, an option's value), fit for one line of a terminal: control
/// characters are spelled out (\n, \t, \x1b), also those of UTF-8's second block and the marks that turn the
/// direction of writing (\u202e). All else stays, so that twice is the same as once; a backslash is not
/// doubled.
std::string one_line(std::string_view text);

}  // namespace ddp

#pragma once

#include <cstddef>
#include <string_view>

namespace ddp::launcher {

/// How much of `row` is a frame of the bar that drew `previous` before, in bytes; 0 when that cannot be said
/// for sure. A program that logs while its bar stands writes right behind it ("45%|### | 9/20
/// [00:01]ERROR…"), and only the likeness of the frames tells where the log line begins: numbers and runs of
/// fill characters may differ in value and length, everything else must be equal.
std::size_t frame_length(std::string_view previous, std::string_view row);

/// Without the spaces at its end.
std::string_view trimmed(std::string_view row);

}  // namespace ddp::launcher

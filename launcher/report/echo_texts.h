#pragma once

#include <span>
#include <string_view>

namespace ddp::launcher {

/// One text by which a program says that it lost a peer, not that it failed by itself.
struct EchoText {
  std::string_view words;    ///< part of the text that identifies it; at least 4 bytes
  std::string_view source;   ///< program that writes it
  std::string_view example;  ///< the text as it was seen
};

/// All known texts, each once. A text that may also state an own failure does not belong here:
/// "DistNetworkError" (a port in use), "watchdog thread terminated" (any CUDA error), "EOFError: Ran out of
/// input" (a truncated file).
std::span<const EchoText> echo_texts();

/// True if `text`, whose lines end with '\n', has one of them.
bool is_echo(std::string_view text);

}  // namespace ddp::launcher

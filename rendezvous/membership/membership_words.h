#pragma once

#include <chrono>
#include <string>

namespace ddp::rendezvous {

/// "1 node", "3 nodes".
std::string counted(int count, const char* one, const char* many);
/// "500 ms", "3 s", "2.5 s", "10 min", "1 h".
std::string duration_words(std::chrono::nanoseconds time);

}  // namespace ddp::rendezvous

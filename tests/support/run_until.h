#pragma once

#include <chrono>

#include "base/asio.h"

namespace ddp::test {

/// Runs the loop until `holds` returns true, at most for 25 s. Returns whether it does.
template <class Condition>
bool run_until(asio::io_context& loop, const Condition& holds) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(25);
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= give_up) return false;
    loop.restart();
    loop.run_one_for(std::chrono::milliseconds(50));
  }
  return true;
}

}  // namespace ddp::test

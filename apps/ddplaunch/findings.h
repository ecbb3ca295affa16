#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddp {

/// What reading the options brings to light besides values.
struct Findings {
  std::vector<std::string> mistakes;
  std::vector<std::string> notes;

  void fail(const std::string& text) { mistakes.push_back("ddplaunch: " + text); }
  void note(const std::string& text) { notes.push_back("ddplaunch: " + text); }
};

}  // namespace ddp

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/safe_text.h"

namespace ddp {

/// What reading the options brings to light besides values. Each text becomes one line, whatever the user's
/// words in it hold.
struct Diagnostics {
  std::vector<std::string> errors;
  std::vector<std::string> notes;
  std::vector<std::string> advice;  ///< what a reader of mistakes may not know

  void fail(const std::string& text) { errors.push_back("ddplaunch: " + one_line(text)); }
  std::vector<std::string> all_errors() const {
    std::vector<std::string> all = errors;
    for (const std::string& text : advice)
      all.push_back("ddplaunch: " + one_line(text));
    return all;
  }
  void note(const std::string& text) { notes.push_back("ddplaunch: " + one_line(text)); }
};

}  // namespace ddp

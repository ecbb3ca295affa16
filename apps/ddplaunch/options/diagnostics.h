#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/safe_text.h"

namespace ddp {

/// The messages of reading the options. Each text becomes one line, even if the user's words in it have
/// several.
struct Diagnostics {
  std::vector<std::string> errors;
  std::vector<std::string> notes;
  std::vector<std::string> advice;  ///< facts that help to understand the errors

  void fail(const std::string& text) {
    errors.push_back("ddplaunch: " + one_line(text) + invisible_hint(text));
  }
  std::vector<std::string> all_errors() const {
    std::vector<std::string> all = errors;
    for (const std::string& text : advice)
      all.push_back("ddplaunch: " + one_line(text));
    return all;
  }
  void note(const std::string& text) { notes.push_back("ddplaunch: " + one_line(text)); }
};

}  // namespace ddp

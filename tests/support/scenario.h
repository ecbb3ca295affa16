#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

/// The one engine of the scenario files in tests/scenarios; the README there explains the files and their
/// words.
namespace ddp::test {

using Words = std::vector<std::string>;

/// What the events of one scenario act on. Each scenario has its own.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Acts on the event and returns the lines that must follow it, in order, without their indentation.
  virtual std::vector<std::string> act(const Words& words, const std::string& line) = 0;
};

/// Runs each file of tests/scenarios/FOLDER on its own stage. `at_least` detects a folder that lost its
/// files.
void run_scenarios(const std::string& folder, std::size_t at_least,
                   const std::function<std::unique_ptr<Stage>()>& make_stage);

/// Returns the words between the separators.
Words split_words(const std::string& line, char between = ' ');

/// Returns what stands between the line's first and last quote.
std::string quoted_text(const std::string& line);

}  // namespace ddp::test

#include "tests/support/scenario.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/catch.h"

namespace ddp::test {
namespace {

using std::filesystem::path;

class Scenario {
 public:
  explicit Scenario(Stage& stage) : stage_(stage) {}

  void run(const path& file) {
    const std::string blessed = play(file, false);
    expect_no_more("the end of " + file.filename().string());
    if (bless_) std::ofstream(file) << blessed;
  }

 private:
  /// Returns the file's text with the lines that follow today. Used files stay as they are.
  std::string play(const path& file, bool is_used) {
    std::ifstream in(file);
    INFO(file);
    REQUIRE(in);
    std::string text;
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      const bool is_result = line[0] == ' ';
      if (bless_ && is_result) {
        if (is_used && next_ < follows_.size()) ++next_;
        continue;
      }
      text += line + '\n';
      const Words words = split_words(line);
      if (words.empty() || words[0][0] == '#') continue;
      INFO(file.filename().string() << ":" << number << ": " << line);
      if (is_result) {
        REQUIRE(next_ < follows_.size());
        CHECK(follows_[next_++] == line.substr(line.find_first_not_of(' ')));
        continue;
      }
      expect_no_more(line);
      if (words[0] == "use") {
        play(file.parent_path() / "used" / (words.at(1) + ".txt"), true);
      } else {
        follows_ = stage_.act(words, line);
        next_ = 0;
      }
      for (; bless_ && !is_used && next_ < follows_.size(); ++next_)
        text += "  " + follows_[next_] + '\n';
    }
    return text;
  }

  void expect_no_more(const std::string& before) {
    for (; !bless_ && next_ < follows_.size(); ++next_)
      FAIL_CHECK("not in the scenario before " << before << ": " << follows_[next_]);
  }

  Stage& stage_;
  const bool bless_ = std::getenv("DDP_BLESS") != nullptr;
  std::vector<std::string> follows_;
  std::size_t next_ = 0;
};

}  // namespace

void run_scenarios(const std::string& folder, std::size_t at_least,
                   const std::function<std::unique_ptr<Stage>()>& make_stage) {
  std::vector<path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(path(DDP_SOURCE_DIR) / "tests/scenarios" / folder))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= at_least);
  for (const path& file : files) {
    const auto stage = make_stage();
    Scenario(*stage).run(file);
  }
}

Words split_words(const std::string& line, char between) {
  std::istringstream in(line);
  Words words;
  for (std::string word; std::getline(in, word, between);)
    if (!word.empty()) words.push_back(word);
  return words;
}

std::string quoted_text(const std::string& line) {
  const auto first = line.find('"');
  return first == std::string::npos ? "" : line.substr(first + 1, line.rfind('"') - first - 1);
}

}  // namespace ddp::test

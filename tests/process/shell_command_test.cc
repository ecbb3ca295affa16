#include "remote/hosts/shell_command.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/process/process_probe.h"

using namespace ddp;
using namespace ddp::process_test;
using Words = std::vector<std::string>;

namespace {

// Returns the path of the program, empty if it is not installed.
std::string installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::string rest = path != nullptr ? path : "/usr/bin:/bin";
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    const std::string file = rest.substr(0, colon) + '/' + program;
    if (::access(file.c_str(), X_OK) == 0) return file;
    rest.erase(0, std::min(colon + 1, rest.size()));
  }
  return "";
}

// Checks that a program started by the shell receives and prints each word between angle brackets.
void check_shell(const std::string& path, const Words& shell, const Words& words) {
  CAPTURE(shell.front());
  Words command = {"/usr/bin/printf", "<%s>"};
  std::string expected;
  for (const std::string& word : words) {
    command.push_back(word);
    expected += '<' + word + '>';
  }
  const auto line = remote::shell_quote(command);
  REQUIRE(line.has_value());
  CAPTURE(*line);
  ChildSpec spec;
  spec.path = path;
  spec.argv = shell;
  spec.argv.push_back(*line);
  spec.env = {"HOME=/home", "PATH=/usr/bin:/bin"};
  CHECK(output_of(spec) == expected);
}

// Every character with a meaning in one of the shells: alone, in front, at the end and inside a word.
Words difficult_words() {
  Words words = {"plain", "",    "two words", "it's",  "a!b",  "!!",    "a\\b", "\\",    "\\\\",
                 "'",     "\"",  "a\\'b!'\\", "$HOME", "`id`", "$(id)", "~",    "~root", "*",
                 "?",     "[a]", "{a,b}",     "{}",    "a=b",  "=ls",   "%1",   "@",     "#x",
                 "a#b",   "a^b", "^x^y",      "a;b",   "a&b",  "a|b",   "(a)",  "<a>",   "\ttab ",
                 "-n",    "--",  "h\xC3\xA9", "a%%b",  "50%"};
  for (char c = 0x20; c < 0x7f; ++c)
    words.push_back(std::string("x") + c + 'y');
  return words;
}

}  // namespace

TEST_CASE("Real shells parse the line alike") {
  const Words words = difficult_words();
  const std::vector<Words> shells = {
      {"sh", "-c"},        {"dash", "-c"},       {"bash", "-c"}, {"busybox", "sh", "-c"},
      {"csh", "-f", "-c"}, {"tcsh", "-f", "-c"}, {"fish", "-c"}, {"zsh", "-f", "-c"},
      {"ksh", "-c"}};
  std::string ran;
  for (const Words& shell : shells) {
    const std::string path = installed(shell.front());
    if (path.empty()) continue;
    ran += ' ' + shell.front();
    check_shell(path, shell, words);
  }
  WARN("shells tried:" << ran);
  CHECK(ran.find(" sh") != std::string::npos);
}

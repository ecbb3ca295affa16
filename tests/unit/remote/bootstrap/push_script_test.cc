#include "remote/bootstrap/bootstrap.h"

#include <regex>
#include <string>
#include <vector>

#include "remote/hosts/shell_command.h"
#include "tests/support/catch.h"

using namespace ddp::remote;

namespace {

const AgentWanted kWanted{"/opt/ddp/bin/ddplaunchd", {7, "0.1.0"}, {"aa11", "bb22"}, false};

/// The script of a command, which comes in several words.
std::string script_of(const std::vector<std::string>& words) {
  std::string script;
  for (std::size_t i = 4; i < words.size(); ++i)
    script += words[i];
  return script;
}

}  // namespace

TEST_CASE("the first command tries the installed agent, then the cached ones") {
  const auto words = first_lookup(kWanted);
  REQUIRE(words.size() > 4);
  CHECK(words[0] == "sh");
  CHECK(words[1] == "-c");
  CHECK(words[3] == "/opt/ddp/bin/ddplaunchd");
  const std::string script = script_of(words);
  CHECK(script.find("for k in - aa11 bb22; do") != std::string::npos);
  CHECK(script.find("w=$(\"$b\" --fits 7 0.1.0 aa11 bb22 ") != std::string::npos);
  CHECK(script.find("case \"$r aa11 bb22 \" in 0*\" $w \"*) ") != std::string::npos);
  CHECK(script.find("program \"$b\"") == std::string::npos);
  CHECK_FALSE(std::regex_search(script, std::regex("@[A-Z]+@")));  // every placeholder is replaced
}

TEST_CASE("the first command has no characters that login shells interpret differently") {
  for (const bool train : {false, true}) {
    AgentWanted wanted = kWanted;
    wanted.train = train;
    // csh expands '!' inside single quotes, fish reads a backslash there; and csh words are short.
    for (const std::string& word : first_lookup(wanted)) {
      CHECK(word.find_first_of("'!\\\n") == std::string::npos);
      CHECK(word.size() < 1000);
    }
    CHECK(shell_quote(first_lookup(wanted)).has_value());
  }
  for (const std::string& word : given_lookup({"/opt/ddplaunchd", "--stdio"}))
    CHECK(word.find_first_of("'!\\\n") == std::string::npos);
  CHECK(first_lookup(kWanted, true)[2].find("fits") == std::string::npos);
}

TEST_CASE("without an agent to copy the installed one is still tried") {
  AgentWanted wanted = kWanted;
  wanted.keys.clear();
  CHECK(script_of(first_lookup(wanted)).find("for k in -; do") != std::string::npos);
}

TEST_CASE("the script is sent with its length, its files and their checksums") {
  AgentWanted wanted = kWanted;
  wanted.train = true;
  const std::string text =
      push_script(wanted, "aa11.cc33", {{"train", 1000, "f00d"}, {"ddplaunchd", 2000, "beef"}});
  const std::size_t newline = text.find('\n');
  CHECK(std::to_string(text.size() - newline - 1) == text.substr(0, newline));
  const std::string script = text.substr(newline + 1);
  CHECK(
      script.starts_with("key=aa11.cc33 total=3000 names=\"train ddplaunchd\" fits=\"7 0.1.0 aa11 bb22\" "
                         "anew=\n"));
  CHECK(script.find("\ntake_all() { take 0 train 1000 f00d; take 1 ddplaunchd 2000 beef; }\n"
                    "verify_all() { verify train f00d; verify ddplaunchd beef; }\n"
                    "beside() { program \"$1\"; }\n") != std::string::npos);
}

TEST_CASE("a terminal that echoes the script does not imitate the agent's messages") {
  Bootstrap boot("gpu01", "/opt/ddp/bin/ddplaunchd", Bootstrap::Lookup::kPush);
  CHECK(boot.feed("ddplaunchd-need x86_64 127\n") == Bootstrap::State::kNeed);
  CHECK(boot.go_on() == Bootstrap::State::kReading);
  CHECK(boot.feed(push_script(kWanted, "aa11", {{"ddplaunchd", 2000, "beef"}})) ==
        Bootstrap::State::kReading);
  CHECK(boot.feed(installed_script() + "\n") == Bootstrap::State::kReading);
}

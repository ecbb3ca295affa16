#include "remote/hosts/shell_command.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tests/support/catch.h"

using ddp::ErrorCode;
using ddp::UniqueFd;
using ddp::remote::jump_command;
using ddp::remote::shell_quote;
using ddp::remote::split_words;
using Words = std::vector<std::string>;

namespace {

bool installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::string rest = path != nullptr ? path : "/usr/bin:/bin";
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    if (::access((rest.substr(0, colon) + '/' + program).c_str(), X_OK) == 0) return true;
    rest.erase(0, std::min(colon + 1, rest.size()));
  }
  return false;
}

// Returns the output of `shell… line`.
std::string output_of(Words shell, const std::string& line) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  shell.push_back(line);
  std::vector<char*> argv;
  for (std::string& word : shell)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(write_end.get(), 1);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  write_end.reset();
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got; (got = ::read(read_end.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  return text;
}

// Checks that a program started by the shell receives and prints each word between angle brackets.
void check_shell(const Words& shell, const Words& words) {
  CAPTURE(shell.front());
  Words command = {"/usr/bin/printf", "<%s>"};
  std::string expected;
  for (const std::string& word : words) {
    command.push_back(word);
    expected += '<' + word + '>';
  }
  const auto line = shell_quote(command);
  REQUIRE(line.has_value());
  CAPTURE(*line);
  CHECK(output_of(shell, *line) == expected);
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

std::string command(const std::vector<std::string>& ssh, const std::string& jumps) {
  auto line = jump_command(ssh, jumps);
  REQUIRE(line.has_value());
  return *line;
}

}  // namespace

TEST_CASE("Plain words need no quotes") {
  CHECK(*shell_quote({"/opt/ddp-1.0/bin/ddplaunchd", "--stdio", "--x=1", "a@b:c,d+e"}) ==
        "/opt/ddp-1.0/bin/ddplaunchd --stdio --x=1 a@b:c,d+e");
}

TEST_CASE("Other words are quoted") {
  CHECK(*shell_quote({"a b"}) == "'a b'");
  CHECK(*shell_quote({""}) == "''");
  CHECK(*shell_quote({"it's"}) == "'it'\\''s'");
  CHECK(*shell_quote({"A=b"}) == "'A=b'");
  CHECK(*shell_quote({"x", "=b", "~"}) == "x '=b' '~'");
}

TEST_CASE("Words that no quoting brings through all shells are refused") {
  CHECK(shell_quote({}).error().code == ErrorCode::kUsage);
  CHECK(shell_quote({"a\nb"}).error().code == ErrorCode::kUsage);
  CHECK(shell_quote({std::string("a\0b", 3)}).error().code == ErrorCode::kUsage);
}

TEST_CASE("Real shells parse the line alike") {
  const Words words = difficult_words();
  const std::vector<Words> shells = {
      {"sh", "-c"},        {"dash", "-c"},       {"bash", "-c"}, {"busybox", "sh", "-c"},
      {"csh", "-f", "-c"}, {"tcsh", "-f", "-c"}, {"fish", "-c"}, {"zsh", "-f", "-c"},
      {"ksh", "-c"}};
  std::string ran;
  for (const Words& shell : shells) {
    if (!installed(shell.front())) continue;
    ran += ' ' + shell.front();
    check_shell(shell, words);
  }
  WARN("shells tried:" << ran);
  CHECK(ran.find(" sh") != std::string::npos);
}

TEST_CASE("--ssh-command is split into words") {
  CHECK(*split_words("ssh -F conf") == Words{"ssh", "-F", "conf"});
  CHECK(*split_words("  ssh\t-o 'Proxy Command'=\"a b\"  ") == Words{"ssh", "-o", "Proxy Command=a b"});
  CHECK(*split_words("a\\ b '' \"\\\"x\\y\"") == Words{"a b", "", "\"x\\y"});
  CHECK(split_words("")->empty());
  CHECK(*split_words("ssh\na") == Words{"ssh", "a"});
  for (const char* text : {"ssh 'a\nb'", "ssh \"a\nb\"", "ssh a\\\nb"}) {
    CHECK(split_words(text).error().text == "a word contains a line feed, which not every shell can quote");
  }
  CHECK(split_words("ssh 'a").error().text == "the quote ' is not closed");
  CHECK(split_words("ssh \\").error().text == "the \\ at the end has nothing to quote");
}

TEST_CASE("one jump host, with user and port in each spelling") {
  CHECK(command({"ssh"}, "one") == "ssh -W '[%h]:%p' -- one");
  CHECK(command({"ssh"}, "bob@one:2222") == "ssh -l bob -p 2222 -W '[%h]:%p' -- one");
  CHECK(command({"ssh"}, "ssh://bob@one:2222") == "ssh -l bob -p 2222 -W '[%h]:%p' -- one");
  CHECK(command({"ssh"}, "me@corp@one") == "ssh -l me@corp -W '[%h]:%p' -- one");
  CHECK(command({"ssh"}, "[::1]:33") == "ssh -p 33 -W '[%h]:%p' -- ::1");
  CHECK(command({"ssh"}, "[::1]") == "ssh -W '[%h]:%p' -- ::1");
  CHECK(command({"ssh"}, "fe80::1") == "ssh -W '[%h]:%p' -- fe80::1");
}

TEST_CASE("several jump hosts: each is reached through those before it") {
  // The first round of expansion turns %%h into %h for the next program.
  CHECK(command({"ssh"}, "one,two") ==
        "ssh -o 'ProxyCommand=ssh -W '\\''[%%h]:%%p'\\'' -- one' -W '[%h]:%p' -- two");
}

TEST_CASE("the caller's arguments stay unchanged, tokens included") {
  CHECK(command({"/opt/my ssh", "-F", "50%.conf"}, "one") ==
        "'/opt/my ssh' -F 50%%.conf -W '[%h]:%p' -- one");
}

TEST_CASE("an empty list of jump hosts gives no command") {
  CHECK(jump_command({"ssh"}, "").has_error());
  CHECK(jump_command({"ssh"}, "one,").has_error());
  CHECK(jump_command({"ssh"}, ",one").has_error());
  CHECK(jump_command({"ssh"}, "bob@").has_error());
  CHECK(jump_command({"ssh"}, "[").has_error());
}

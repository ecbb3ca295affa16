#include "remote/hosts/shell_command.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using ddp::ErrorCode;
using ddp::remote::jump_command;
using ddp::remote::shell_quote;
using ddp::remote::split_words;
using Words = std::vector<std::string>;

namespace {

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

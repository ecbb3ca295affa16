#include "remote/hosts/jump_command.h"

#include "tests/support/catch.h"

using namespace ddp::remote;

namespace {

std::string command(const std::vector<std::string>& ssh, const std::string& jumps) {
  auto line = jump_command(ssh, jumps);
  REQUIRE(line.has_value());
  return *line;
}

}  // namespace

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
  // The first round of expansion turns %%h into %h, which is the next program's own.
  CHECK(command({"ssh"}, "one,two") ==
        "ssh -o 'ProxyCommand=ssh -W '\\''[%%h]:%%p'\\'' -- one' -W '[%h]:%p' -- two");
}

TEST_CASE("the caller's words stay as they are, tokens included") {
  CHECK(command({"/opt/my ssh", "-F", "50%.conf"}, "one") ==
        "'/opt/my ssh' -F 50%%.conf -W '[%h]:%p' -- one");
}

TEST_CASE("no host, no command") {
  CHECK(jump_command({"ssh"}, "").has_error());
  CHECK(jump_command({"ssh"}, "one,").has_error());
  CHECK(jump_command({"ssh"}, ",one").has_error());
  CHECK(jump_command({"ssh"}, "bob@").has_error());
  CHECK(jump_command({"ssh"}, "[").has_error());
}

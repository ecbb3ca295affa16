#include "apps/ddplaunchd/daemon_options.h"

#include "tests/support/catch.h"

namespace ddp {
namespace {

DaemonOptions good(const std::vector<std::string>& words) {
  const auto options = read_daemon_options(words);
  REQUIRE(options.has_value());
  return *options;
}

std::string flaw(const std::vector<std::string>& words) {
  const auto options = read_daemon_options(words);
  REQUIRE(!options.has_value());
  CHECK(options.error().code == ErrorCode::kUsage);
  return options.error().text;
}

TEST_CASE("the address that a daemon listens on") {
  CHECK(good({"--listen"}).command == DaemonCommand::kListen);
  CHECK(good({"--listen"}).port == 29499);
  CHECK(good({"--listen"}).address.empty());
  CHECK(good({"--listen", "4000"}).port == 4000);
  CHECK(good({"--listen=10.0.0.5:4000"}).address == "10.0.0.5");
  CHECK(good({"--listen", "[fd00::5]:4000"}).address == "fd00::5");
  CHECK(good({"--listen", "[fd00::5]:4000"}).port == 4000);
  CHECK(good({"--listen", "--token-file", "/t"}).token_file == "/t");
  CHECK(good({"--token_file=/t", "--listen", "0"}).port == 0);
  CHECK(good({"--new-token"}).command == DaemonCommand::kNewToken);
  CHECK(good({"--new-token", "/t"}).new_token_path == "/t");
  CHECK(good({"--new-token=-t"}).new_token_path == "-t");
}

TEST_CASE("the agent's commands") {
  CHECK(good({"--stdio"}).command == DaemonCommand::kStdio);
  CHECK(good({"--fits", "7", "0.1.0"}).fits_words == std::vector<std::string>{"7", "0.1.0"});
  CHECK(good({"--fits", "7", "0.1.0", "aa.bb", "cc"}).fits_words ==
        std::vector<std::string>{"7", "0.1.0", "aa.bb", "cc"});
  CHECK(good({"--fits", "7", "0.1.0"}).command == DaemonCommand::kFits);
  CHECK(good({"--verify", "aa", "/f"}).verify_words == std::vector<std::string>{"aa", "/f"});
  CHECK(good({"--verify", "aa", "/f"}).command == DaemonCommand::kVerify);
  CHECK(good({"--stdio", "-h"}).command == DaemonCommand::kHelp);
  CHECK(good({"-V"}).command == DaemonCommand::kVersion);
  CHECK(good({"--version"}).command == DaemonCommand::kVersion);
}

TEST_CASE("a wrong option of the daemon is named in an error") {
  CHECK(flaw({"--listen", "http"}) ==
        "--listen http: \"http\" is not a port; give a number up to 65535 (0: any free port)");
  CHECK(flaw({"--listen", "10.0.0.5:70000"}) ==
        "--listen 10.0.0.5:70000: \"70000\" is not a port; give a number up to 65535 (0: any free port)");
  CHECK(flaw({"--listen", "10.0.0.5"}) == "--listen 10.0.0.5: give the port, too: 10.0.0.5:29499");
  CHECK(flaw({"--listen", "fd00::5:4000"}) ==
        "--listen fd00::5:4000: write an IPv6 address in brackets: [fd00::5]:29499");
  CHECK(flaw({"--listen", "[fd00::5]"}) == "--listen [fd00::5]: give the port, too: [fd00::5]:29499");
  CHECK(flaw({"--listen", ":4000"}) ==
        "--listen :4000: the address before the colon is missing; for all interfaces give only the port");
  CHECK(flaw({"--listen", "1", "--insecure"}) ==
        "unknown option --insecure; ddplaunchd --help lists all options");
  CHECK(flaw({"--listn"}) == "unknown option --listn; did you mean --listen?");
  CHECK(flaw({"--token-file"}) == "--token-file needs a value: --token-file FILE");
  CHECK(flaw({"--listen", "x", "y", "--token-file="}) ==
        "--token-file has an empty value\n"
        "ddplaunchd: unexpected word \"y\"; ddplaunchd --help lists all options\n"
        "ddplaunchd: --listen x: \"x\" is not a port; give a number up to 65535 (0: any free port)");
  CHECK(flaw({"--verify", "a"}) == "--verify needs 2 values: --verify SHA256 FILE");
  CHECK(flaw({"--verify", "a", "--stdio"}) == "--verify needs 2 values: --verify SHA256 FILE");
  CHECK(flaw({"--verify", "a", "b", "c"}) == "unexpected word \"c\"; ddplaunchd --help lists all options");
  CHECK(flaw({"--fits", "7"}) == "--fits needs 2 values: --fits PROTOCOL VERSION [KEY…]");
  CHECK(flaw({"--stdio", "x"}) == "unexpected word \"x\"; ddplaunchd --help lists all options");
}

TEST_CASE("options of the daemon that contradict each other") {
  CHECK(flaw({}) == "give --listen, --new-token or --stdio; ddplaunchd --help lists all options");
  CHECK(flaw({"--listen", "--new-token"}) == "--new-token cannot be used with --listen; give one of them");
  CHECK(flaw({"--verify", "a", "b", "--stdio"}) == "--verify cannot be used with --stdio; give one of them");
  for (const char* other : {"--new-token", "--stdio", "--token-file=/u"})
    CHECK(flaw({other, "--token-file", "/t"}) ==
          "--token-file needs --listen; --new-token FILE names its own file");
}

}  // namespace
}  // namespace ddp

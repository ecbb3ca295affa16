#include "apps/ddplaunch_listen/listen_options.h"

#include "tests/support/catch.h"

namespace ddp {
namespace {

ListenOptions good(const std::vector<std::string>& words) {
  const auto options = read_listen_options(words);
  REQUIRE(options.has_value());
  return *options;
}

std::string flaw(const std::vector<std::string>& words) {
  const auto options = read_listen_options(words);
  REQUIRE(!options.has_value());
  CHECK(options.error().code == ErrorCode::kUsage);
  return options.error().text;
}

TEST_CASE("the address that a daemon listens on") {
  CHECK(good({"--listen"}).port == 29499);
  CHECK(good({"--listen"}).address.empty());
  CHECK(good({"--listen", "4000"}).port == 4000);
  CHECK(good({"--listen=10.0.0.5:4000"}).address == "10.0.0.5");
  CHECK(good({"--listen", "[fd00::5]:4000"}).address == "fd00::5");
  CHECK(good({"--listen", "[fd00::5]:4000"}).port == 4000);
  CHECK(good({"--listen", "--token-file", "/t"}).token_file == "/t");
  CHECK(good({"--token_file=/t", "--listen", "0"}).port == 0);
  CHECK(good({"--new-token"}).new_token);
  CHECK(good({"--new-token", "/t"}).new_token_path == "/t");
  CHECK(good({"--new-token=-t"}).new_token_path == "-t");
}

TEST_CASE("a wrong option of the daemon is named in an error") {
  CHECK(flaw({"--listen", "http"}) ==
        "--listen http: \"http\" is not a port; give a number up to 65535 (0: any free port)");
  CHECK(flaw({"--listen", "10.0.0.5:70000"}) ==
        "--listen 10.0.0.5:70000: \"70000\" is not a port; give a number up to 65535 (0: any free port)");
  CHECK(flaw({"--listen", "fd00::5:4000"}) ==
        "--listen fd00::5:4000: write an IPv6 address in brackets: [fd00::5]:29499");
  CHECK(flaw({"--listen", ":4000"}) ==
        "--listen :4000: the address before the colon is missing; for all interfaces give only the port");
  CHECK(flaw({"--listen", "1", "--insecure"}) ==
        "unknown option --insecure; ddplaunchd --help lists all options");
  CHECK(flaw({"--token-file"}) == "--token-file needs a value: --token-file FILE");
  CHECK(flaw({"--listen", "x", "y", "--token-file="}) ==
        "--token-file has an empty value\n"
        "ddplaunchd: unexpected word \"y\"; ddplaunchd --help lists all options\n"
        "ddplaunchd: --listen x: \"x\" is not a port; give a number up to 65535 (0: any free port)");
  CHECK(flaw({"--token-file", "/t"}) == "give either --listen or --new-token");
  CHECK(flaw({"--listen", "--new-token"}) == "give either --listen or --new-token");
  CHECK(flaw({"--new-token", "--token-file", "/t"}) ==
        "--new-token FILE already names the file; omit --token-file");
}

}  // namespace
}  // namespace ddp

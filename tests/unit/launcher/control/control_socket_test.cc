#include "launcher/control/control_socket.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

TEST_CASE("a request about workers has only keys that it may have") {
  const auto all = parse_worker_request(R"({"rank": 3, "argv": ["ls", "-l", ""], "timeout_ms": 1500})");
  REQUIRE(all.has_value());
  CHECK(all->rank == 3u);
  CHECK(all->argv == std::vector<std::string>{"ls", "-l", ""});
  CHECK(all->timeout == std::chrono::milliseconds(1500));
  for (const char* body : {"", "{}"}) {
    const auto none = parse_worker_request(body);
    REQUIRE(none.has_value());
    CHECK((!none->rank && none->argv.empty() && none->timeout == std::chrono::minutes(1)));
  }
  for (const char* body :
       {"x", "[]", "3", R"({"rank": "3"})", R"({"rank": -1})", R"({"rank": 4294967296})", R"({"rank": 1.5})",
        R"({"argv": "ls"})", R"({"argv": [1]})", R"({"argv": ["a\u0000b"]})", R"({"timeout_ms": 3600001})",
        R"({"timeout_ms": -1})", R"({"command": ["ls"]})", R"({"rank": 3)"}) {
    CAPTURE(body);
    CHECK_FALSE(parse_worker_request(body).has_value());
  }
}

}  // namespace
}  // namespace ddp::launcher

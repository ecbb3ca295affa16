// Runs ddplaunch's client against any store that uses the numbering of torch >= 2.2: store_client_main HOST
// PORT. Exit 0 when every operation gave the expected result.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "rendezvous/store_tcp/tcp_store_client.h"

namespace {

using namespace std::chrono_literals;
using ddp::rendezvous::TcpStoreClient;

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("%s: wrong\n", what);
  ++failures;
}

template <class T, class U>
void expect_value(const ddp::Result<T>& got, const U& wanted, const char* what) {
  if (!got) std::printf("%s: %s\n", what, got.error().text.c_str());
  expect(got && *got == wanted, what);
}

void exercise(TcpStoreClient& client) {
  expect(client.set("text", "value").has_value(), "set");
  expect_value(client.get("text", 5s), "value", "get");
  expect_value(client.add("sum", 5, 5s), 5, "add");
  expect_value(client.add("sum", -7, 5s), -2, "add of a negative");
  const ddp::Result<std::string> late = client.get("never", 100ms);
  expect(!late && late.error().code == ddp::ErrorCode::kTimeout, "get of a missing key");
  expect_value(client.add("sum", 1, 5s), -1, "add after a timed-out get");
  const std::string big(4 * 1024 * 1024, 'x');
  expect(client.set("big", big).has_value(), "set of 4 MiB");
  expect_value(client.get("big", 10s), big, "get of 4 MiB");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto client = TcpStoreClient::connect(argv[1], static_cast<std::uint16_t>(std::atoi(argv[2])), 20s);
  if (!client) {
    std::printf("%s\n", client.error().text.c_str());
    return 1;
  }
  exercise(*client);
  return failures == 0 ? 0 : 1;
}

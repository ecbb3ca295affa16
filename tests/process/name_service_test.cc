#include "remote/start/resolver.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"

namespace ddp::remote {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

/// A directory that is the only one in PATH. `script` is its getent, which records its calls in the file
/// "calls".
class FakeGetent {
 public:
  explicit FakeGetent(const std::string& script) : path_before_(std::getenv("PATH")) {
    REQUIRE(mkdtemp(directory_.data()) != nullptr);
    const std::string program = directory_ + "/getent";
    std::ofstream(program) << "#!/bin/sh\necho \"$*\" >>" << directory_ << "/calls\n" << script << "\n";
    REQUIRE(chmod(program.c_str(), 0755) == 0);
    setenv("PATH", directory_.c_str(), 1);
  }
  ~FakeGetent() {
    setenv("PATH", path_before_.c_str(), 1);
    std::filesystem::remove_all(directory_);
  }
  std::string calls() const {
    std::ifstream file(directory_ + "/calls");
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string path_before_;
  std::string directory_ = "/tmp/ddp_getent_XXXXXX";
};

auto find(const std::string& host, int family = AF_UNSPEC, steady_clock::duration time = seconds(10)) {
  return find_addresses(host, family, steady_clock::now() + time);
}

std::string text(const Result<std::vector<asio::ip::address>>& found) {
  if (!found) return "error: " + found.error().text;
  std::string all;
  for (const asio::ip::address& address : *found)
    all += (all.empty() ? "" : " ") + address.to_string();
  return all;
}

TEST_CASE("numeric addresses ask nobody") {
  const FakeGetent getent("exit 2");
  CHECK(text(find("10.1.2.3")) == "10.1.2.3");
  CHECK(text(find("::1")) == "::1");
  CHECK(text(find("fe80::1%lo")) == "fe80::1%lo");
  CHECK(getent.calls().empty());
  CHECK(text(find("10.1.2.3", AF_INET6)) == "error: Name or service not known");
}

TEST_CASE("a name has the addresses that getent prints, in its order and once each") {
  const FakeGetent getent(R"(echo '2001:db8::7  STREAM gpu07.example'
echo '2001:db8::7  DGRAM'
echo '::ffff:10.0.0.7 STREAM'
echo '10.0.0.7  STREAM'
echo 'nonsense')");
  CHECK(text(find("gpu07")) == "2001:db8::7 10.0.0.7");
  CHECK(text(find("gpu07", AF_INET)) == "10.0.0.7");
  CHECK(text(find("gpu07", AF_INET6)) == "2001:db8::7");
  CHECK(getent.calls() == "ahosts gpu07\nahostsv4 gpu07\nahostsv6 gpu07\n");
}

TEST_CASE("an answer is kept, a failure is not") {
  const FakeGetent getent("test $2 = kept-host || exit 2; echo 10.0.0.8");
  CHECK(text(find("kept-host")) == "10.0.0.8");
  CHECK(text(find("kept-host")) == "10.0.0.8");
  CHECK(text(find("no-host")) == "error: Name or service not known");
  CHECK(text(find("no-host")) == "error: Name or service not known");
  CHECK(getent.calls() == "ahosts kept-host\nahosts no-host\nahosts no-host\n");
}

TEST_CASE("a getent that fails is named, and no option of getent is a host") {
  const FakeGetent getent("exit 3");
  CHECK(text(find("some-host")) == "error: getent exited 3");
  CHECK(text(find("--help")) == "error: this is no host name");
  CHECK(text(find("")) == "error: this is no host name");
}

TEST_CASE("a silent name service is killed at the deadline") {
  const FakeGetent getent("echo 10.0.0.9; exec /bin/sleep 1000");
  const auto found = find("slow-host", AF_UNSPEC, std::chrono::milliseconds(300));
  REQUIRE_FALSE(found.has_value());
  CHECK(found.error().code == ErrorCode::kTimeout);
}

TEST_CASE("the user of this process, and a user that only the name service knows") {
  const FakeGetent getent("test $2 = 4000000001 || exit 2; echo 'ldap:x:4000000001:100::/home/ldap:/bin/sh'");
  const auto own = find_user(::getuid());
  REQUIRE(own.has_value());
  CHECK_FALSE(own->name.empty());
  CHECK(own->home.front() == '/');
  CHECK(getent.calls().empty());  // /etc/passwd has the user
  const auto remote = find_user(4000000001U);
  REQUIRE(remote.has_value());
  CHECK(remote->name == "ldap");
  CHECK(remote->home == "/home/ldap");
  CHECK_FALSE(find_user(4000000002U).has_value());
}

}  // namespace
}  // namespace ddp::remote

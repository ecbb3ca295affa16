#include "rendezvous/link/link_token.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "rendezvous/link/secure_stream.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace ddp::rendezvous {
namespace {

const std::string kGood = "0123456789abcdef0123456789abcdef";

struct TokenFile : test::TemporaryDirectory {
  explicit TokenFile(const std::string& text, mode_t mode = 0600) {
    REQUIRE(::chmod(write("token", text).c_str(), mode) == 0);
  }
  std::filesystem::path folder = TemporaryDirectory::path;
  std::string path = folder / "token";
};

TEST_CASE("a token has at least 32 characters and is one line") {
  CHECK(make_token(kGood, "X").has_value());
  CHECK(make_token(kGood.substr(1), "DDPLAUNCH_TOKEN").error().text ==
        "DDPLAUNCH_TOKEN holds 31 characters; a token needs at least 32 (openssl rand -hex 32 makes one)");
  CHECK(make_token("x", "X").error().text ==
        "X holds 1 character; a token needs at least 32 (openssl rand -hex 32 makes one)");
  CHECK(make_token(kGood.substr(1) + "  \n", "X").error().code == ErrorCode::kUsage);
  CHECK(make_token(kGood + "\n" + kGood, "X").error().text ==
        "X holds more than one line: a token is one line of text");
  CHECK(make_token(std::string(40, 'a'), "X").error().text ==
        "X holds too few different characters to be random (openssl rand -hex 32 makes a token)");
  CHECK(make_token(std::string(5000, 'a'), "X").error().text ==
        "X holds more than 4096 characters; a token has at most 4096");
}

TEST_CASE("the token is removed from the environment") {
  REQUIRE(::setenv("DDPLAUNCH_TOKEN", kGood.c_str(), 1) == 0);
  const char* where = ::getenv("DDPLAUNCH_TOKEN");
  const auto token = take_token_from_environment();
  REQUIRE(token.has_value());
  CHECK(token->secret.reveal() == kGood);
  CHECK(token->origin == "DDPLAUNCH_TOKEN");
  CHECK(::getenv("DDPLAUNCH_TOKEN") == nullptr);
  CHECK(std::strlen(where) == 0);  // also in /proc/PID/environ
  CHECK(take_token_from_environment().value().secret.empty());
}

TEST_CASE("every copy of the token is removed from the environment") {
  std::string other = "DDPLAUNCH_TOKEN_OTHER=x";
  std::string first = "DDPLAUNCH_TOKEN=" + kGood;
  std::string second = "DDPLAUNCH_TOKEN=" + std::string(kGood.rbegin(), kGood.rend());
  char* made_up[] = {other.data(), first.data(), second.data(), nullptr};
  char** const before = std::exchange(::environ, made_up);
  const auto token = take_token_from_environment();
  const bool gone = ::getenv("DDPLAUNCH_TOKEN") == nullptr;
  ::environ = before;
  REQUIRE(token.has_value());
  CHECK(token->secret.reveal() == kGood);
  CHECK(gone);
  CHECK(other == "DDPLAUNCH_TOKEN_OTHER=x");
  const std::string erased = "DDPLAUNCH_TOKEN=" + std::string(kGood.size(), '\0');
  CHECK(first == erased);
  CHECK(second == erased);
}

TEST_CASE("a token file is read when only its owner can read it") {
  const TokenFile file(kGood + "\n");
  const auto token = read_token_file(file.path);
  REQUIRE(token.has_value());
  CHECK(token->secret.reveal() == kGood);
  CHECK(token->origin == "the token file " + file.path);
}

TEST_CASE("a token file that others may read is refused") {
  const TokenFile open(kGood, 0644);
  const auto refused = read_token_file(open.path);
  REQUIRE(refused.has_error());
  CHECK(refused.error().code == ErrorCode::kUsage);
  CHECK(refused.error().text ==
        "the token file " + open.path +
            " may be read by everybody (mode 0644); remove the access of others: chmod 600 " + open.path +
            " (in Kubernetes defaultMode: 0400), and make a new token if others use "
            "this machine");
  const TokenFile group(kGood, 0640);
  CHECK(read_token_file(group.path).has_error());
}

TEST_CASE("a path that is no token file is refused with the reason") {
  const auto missing = read_token_file("/nonexistent/token");
  REQUIRE(missing.has_error());
  CHECK(missing.error().text == "the token file /nonexistent/token: No such file or directory");
  CHECK(missing.error().code == ErrorCode::kUsage);
  const TokenFile file(kGood);
  CHECK(read_token_file(file.folder.string()).error().text ==
        "the token file " + file.folder.string() + " is not a regular file");
  const std::string fifo = (file.folder / "fifo").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(read_token_file(fifo).error().text == "the token file " + fifo + " is not a regular file");
}

TEST_CASE("the default token file must be this user's, in a directory of this user's") {
  const TokenFile file(kGood);
  CHECK(read_own_token_file(file.path).has_value());
  const std::string link = (file.folder / "link").string();
  std::filesystem::create_symlink(file.path, link);
  CHECK(read_own_token_file(link).error().text == "the token file " + link + " is a link");
  CHECK(read_own_token_file((file.folder / "none").string()).error().sys == ENOENT);
  const std::string elsewhere = file.folder.string() + "-link";
  std::filesystem::create_symlink(file.folder, elsewhere);
  CHECK(read_own_token_file(elsewhere + file.path.substr(file.path.rfind('/'))).has_value());
  std::filesystem::remove(elsewhere);
  REQUIRE(::chmod(file.folder.c_str(), 0770) == 0);
  CHECK(read_own_token_file(file.path).has_value());  // members of its group are trusted
  REQUIRE(::chmod(file.folder.c_str(), 0707) == 0);
  CHECK(read_own_token_file(file.path).error().text ==
        "the directory " + file.folder.string() + " is writable by everybody");
  REQUIRE(::chmod(file.folder.c_str(), 0700) == 0);
}

TEST_CASE("a token file or its directory that is another user's is refused", "[root]") {
  if (::geteuid() != 0) SKIP_TEST("only root can change the owner of a file");
  const TokenFile file(kGood);
  REQUIRE(::chown(file.path.c_str(), 61234, 61234) == 0);
  CHECK(read_own_token_file(file.path).error().text ==
        "the token file " + file.path + " belongs to uid 61234 and not to you (uid 0)");
  REQUIRE(::chown(file.folder.c_str(), 61234, 61234) == 0);
  CHECK(read_own_token_file(file.path).error().text ==
        "the directory " + file.folder.string() + " belongs to uid 61234 and not to you (uid 0)");
}

TEST_CASE("random tokens are valid and differ") {
  TokenFile file("");
  const auto one = read_token_file(write_new_token(file.path + ".one").value());
  const auto two = read_token_file(write_new_token(file.path + ".two").value());
  REQUIRE(one.has_value());
  REQUIRE(two.has_value());
  CHECK(one->secret.size() == 64);
  CHECK_FALSE(one->secret == two->secret);
}

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

TEST_CASE("HKDF-SHA256 equals RFC 5869, appendix A.1 and A.3") {
  const std::string key(22, '\x0b');
  CHECK(hkdf_sha256(key, bytes_of("000102030405060708090a0b0c"), bytes_of("f0f1f2f3f4f5f6f7f8f9"), 42)
            .value()
            .reveal() ==
        bytes_of("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"));
  CHECK(hkdf_sha256(key, "", "", 42).value().reveal() ==
        bytes_of("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"));
}

TEST_CASE("role, job, node and nonce are all part of the key") {
  const Secret token{std::string_view(kGood)};
  const auto link = link_key(token, LinkRole::kAgent, "job1", "gpu02").value();
  CHECK(link.size() == 32);
  CHECK(link == link_key(token, LinkRole::kAgent, "job1", "gpu02").value());
  CHECK_FALSE(link == link_key(token, LinkRole::kMaster, "job1", "gpu02").value());
  CHECK_FALSE(link == link_key(token, LinkRole::kAgent, "job2", "gpu02").value());
  CHECK_FALSE(link == link_key(token, LinkRole::kAgent, "job1", "gpu03").value());
  LinkIdentity identity{LinkRole::kAgent, "job1", "gpu02", {}};
  const auto first = session_key(link, identity).value();
  identity.nonce[0] = 1;
  CHECK_FALSE(first == session_key(link, identity).value());
  CHECK(token_check(token).size() == 6);
  CHECK(token_check(token) == token_check(Secret{std::string_view(kGood)}));
}

}  // namespace
}  // namespace ddp::rendezvous

#include "base/files.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ddp;
namespace fs = std::filesystem;

namespace {

class ProgramDirectory {
 public:
  ProgramDirectory() {
    REQUIRE(::mkdtemp(directory_) != nullptr);
    fs::create_directories(path("opt/bin"));
    std::ofstream(path("opt/bin/program")) << "#!/bin/sh\n";
    for (const char* part : {"opt", "opt/bin", "opt/bin/program"})
      allow(part, 0755);
  }
  ~ProgramDirectory() {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  ProgramDirectory(const ProgramDirectory&) = delete;
  ProgramDirectory& operator=(const ProgramDirectory&) = delete;
  std::string path(const std::string& below) const { return std::string(directory_) + '/' + below; }
  void allow(const char* below, unsigned mode) const { REQUIRE(::chmod(path(below).c_str(), mode) == 0); }
  std::string judge() const { return distrust_program(path("opt/bin/program")); }

 private:
  char directory_[32] = "/tmp/ddplaunch-path-XXXXXX";
};

}  // namespace

TEST_CASE("a program is safe if only root and this user can write to it and to its parents") {
  const ProgramDirectory host;
  CHECK(host.judge().empty());
  for (const char* part : {"opt/bin/program", "opt/bin", "opt"}) {
    host.allow(part, 0757);
    CHECK(host.judge() == "other users may write to " + host.path(part));
    host.allow(part, 0755);
  }
  host.allow("opt", 01777);
  CHECK(host.judge().empty());
  host.allow("opt/bin/program", 01757);  // the bit means nothing for a file
  CHECK_FALSE(host.judge().empty());
  CHECK(distrust_program(host.path("opt/none")).empty());
}

TEST_CASE("a program of another user or group is not safe, also behind a link") {
  if (::geteuid() != 0) SKIP_TEST("needs root");
  const ProgramDirectory host;
  for (const char* part : {"opt/bin/program", "opt/bin", "opt"}) {
    REQUIRE(::chown(host.path(part).c_str(), 12345, 0) == 0);
    CHECK(host.judge().find("belongs to uid 12345") != std::string::npos);
    REQUIRE(::chown(host.path(part).c_str(), 0, 12345) == 0);
    host.allow(part, 0775);
    CHECK(host.judge() == "other users may write to " + host.path(part));
    REQUIRE(::chown(host.path(part).c_str(), 0, 0) == 0);
    CHECK(host.judge().empty());
    host.allow(part, 0755);
  }
  fs::create_symlink(host.path("opt/bin/program"), host.path("link"));
  REQUIRE(::chown(host.path("opt").c_str(), 12345, 0) == 0);
  CHECK_FALSE(distrust_program(host.path("link")).empty());
}

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "apps/ddplaunch/options/option_readers.h"
#include "apps/ddplaunch/options/options.h"
#include "base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

TEST_CASE("The context of this process") {
  ::setenv("DDP_TEST_MARK", "value=1", 1);
  const ddp::ProcessContext here = ddp::read_process_context();
  bool found = false;
  for (const auto& [name, value] : here.env)
    found = found || (name == "DDP_TEST_MARK" && value == "value=1");
  CHECK(found);
  CHECK(here.cwd == std::filesystem::current_path());
  CHECK(here.new_job_id.size() == std::string_view("20261121-034500-ab12cd").size());
  CHECK(ddp::is_job_id(here.new_job_id));
}

TEST_CASE("A current directory that no system call takes counts as unknown") {
  const ddp::test::TemporaryDirectory directory;
  const ddp::UniqueFd before(::open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string part(200, 'd');
  REQUIRE(::chdir(directory.path.c_str()) == 0);
  for (int i = 0; i < 25; ++i)
    REQUIRE((::mkdir(part.c_str(), 0700) == 0 && ::chdir(part.c_str()) == 0));
  const ddp::ProcessContext here = ddp::read_process_context();
  REQUIRE(::fchdir(before.get()) == 0);
  CHECK(here.cwd.empty());
}

TEST_CASE("A file is read whole, and an error names path and reason") {
  const ddp::ProcessContext here = ddp::read_process_context();
  const auto dir =
      std::filesystem::temp_directory_path() / ("ddp-surroundings-" + std::to_string(::getpid()));
  std::filesystem::create_directory(dir);
  const std::string path = dir / "file";
  std::ofstream(path) << std::string(200'000, 'x') << '\0' << "end";
  CHECK(here.read_file(path)->size() == 200'004);
  CHECK(here.read_file(dir / "none").error().sys == ENOENT);
  CHECK(here.read_file(dir / "none").error().text == (dir / "none").string() + ": No such file or directory");
  CHECK(here.read_file(dir).error().text == dir.string() + ": Is a directory");

  CHECK(here.can_write(path).has_value());
  CHECK(here.can_write(dir / "new").has_value());
  CHECK_FALSE(std::filesystem::exists(dir / "new"));
  CHECK(here.can_write(dir).error().text == dir.string() + ": Is a directory");
  CHECK(here.can_write(dir / "none/new").error().text ==
        (dir / "none").string() + ": No such file or directory");
  CHECK(here.can_write(dir / "file/new").error().text == path + ": Not a directory");
  std::filesystem::remove_all(dir);
}

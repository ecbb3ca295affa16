#include "apps/train/collectives/nccl/nccl_comms.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

using namespace ddp;
using namespace ddp::train;

namespace {

namespace fs = std::filesystem;

/// A folder with libraries, and the environment of a process that looks for them there.
struct Installation : test::TemporaryDirectory {
  Installation() { path = fs::canonical(path); }

  std::string at(const std::string& inside) const { return path / inside; }
  /// Makes a file with its folders, and returns its path.
  std::string add(const std::string& inside) const {
    const std::string file = write(inside, "x");
    fs::permissions(file, fs::perms::owner_all);
    return file;
  }
  /// Returns the files that are found in this folder. The machine may have others.
  std::vector<std::string> found() const {
    std::vector<std::string> all = nccl_files([this](const char* name) -> const char* {
      const auto value = variables.find(name);
      return value == variables.end() ? nullptr : value->second.c_str();
    });
    std::erase_if(all, [this](const std::string& file) { return !file.starts_with(path.string()); });
    return all;
  }

  std::map<std::string, std::string> variables;
};

constexpr const char* kWheel = "/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";

}  // namespace

TEST_CASE("without variables and files no NCCL is found") {
  const Installation empty;
  CHECK(empty.found().empty());
}

TEST_CASE("NCCL is found in the toolkit, then in the wheels of Python, each file once") {
  Installation all;
  const std::string toolkit = all.add("cuda/lib64/libnccl.so.2"),
                    other = all.add("cuda-old/lib64/libnccl.so.2");
  const std::string venv = all.add(std::string("venv") + kWheel),
                    conda = all.add(std::string("conda") + kWheel),
                    package = all.add("conda/lib/libnccl.so.2");
  const std::string home = all.add(std::string("home/.local") + kWheel);
  all.add("venv/lib/other/site-packages/nvidia/nccl/lib/libnccl.so.2");  // no Python
  all.variables = {{"CUDA_HOME", all.at("cuda")},
                   {"CUDA_PATH", all.at("cuda-old")},
                   {"VIRTUAL_ENV", all.at("venv")},
                   {"CONDA_PREFIX", all.at("conda")},
                   {"HOME", all.at("home")}};
  CHECK(all.found() == std::vector<std::string>{toolkit, other, package, venv, conda, home});
  all.variables["CUDA_PATH"] = all.at("cuda");
  all.variables["CONDA_PREFIX"] = all.at("nowhere");
  CHECK(all.found() == std::vector<std::string>{toolkit, venv, home});
}

TEST_CASE("NCCL is found beside the python3 of PATH and beside the program that it links to") {
  Installation one;
  one.add("python/bin/python3.12");
  const std::string wheel = one.add(std::string("python") + kWheel);
  const std::string local = one.add("python/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2");
  fs::create_directories(one.at("links/bin"));
  fs::create_symlink(one.at("python/bin/python3.12"), one.at("links/bin/python3"));
  one.variables = {{"PATH", one.at("none") + ":" + one.at("links/bin")}};
  CHECK(one.found() == std::vector<std::string>{wheel, local});
  const std::string beside = one.add(std::string("links") + kWheel);
  CHECK(one.found() == std::vector<std::string>{beside, wheel, local});
}

TEST_CASE("a library that cannot be loaded or is not NCCL is passed over for a later one",
          "[loader_without_nccl]") {
  if (void* const handle = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
    ::dlclose(handle);
    SKIP_TEST("this machine's loader finds an NCCL, which comes first");
  }
  Installation one;
  one.add("broken/lib64/libnccl.so.2");
  fs::create_directories(one.at("good/lib64"));
  fs::copy_file(DDP_FAKE_NCCL, one.at("good/lib64/libnccl.so.2"));
  ::setenv("CUDA_HOME", one.at("broken").c_str(), 1);
  ::setenv("CUDA_PATH", one.at("good").c_str(), 1);
  const auto library = NcclLibrary::open("");
  ::unsetenv("CUDA_HOME");
  ::unsetenv("CUDA_PATH");
  REQUIRE(library.has_value());
  CHECK((*library)->path() == one.at("good/lib64/libnccl.so.2"));
}

#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <future>
#include <string>
#include <utility>

#include "launcher/output/job_dir.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

/// A job's directory on a real disk, and disks that are full or fail.
namespace ddp::test {

/// Limits the size of every file of this process: a full disk without root.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileLimit() { lift(); }
  void lift() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

/// Runs `task` on a thread that sees one more mount. Returns false if this process may not mount.
template <class Task>
bool with_mount(const std::string& source, const std::string& target, const char* type, unsigned long flags,
                const char* data, Task task) {
  return std::async(std::launch::async,
                    [&] {
                      const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                                           ::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) == 0 &&
                                           ::mount(source.c_str(), target.c_str(), type, flags, data) == 0;
                      if (mounted) task();
                      return mounted;
                    })
      .get();
}

inline launcher::JobSpec spec_in(const TemporaryDirectory& directory) {
  launcher::JobSpec spec;
  spec.job_id = "run7";
  spec.job_dir = directory.path / "job";
  return spec;
}

inline launcher::JobDir made(const launcher::JobSpec& spec) {
  auto job = launcher::JobDir::create(spec);
  REQUIRE(job.has_value());
  return std::move(*job);
}

inline constexpr launcher::JobDir::Time kStart{};

}  // namespace ddp::test

#include "launcher/control/job_registry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/program.h"
#include "base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

/// A directory of jobs.
struct JobsDirectory : private test::TemporaryDirectory {
  std::string path() const { return TemporaryDirectory::path; }

  JobEntry add(const std::string& job, const std::string& name, const std::string& started,
               const std::string& host = host_name()) const {
    JobEntry entry;
    entry.name = name;
    entry.job = job;
    entry.directory = path() + '/' + name;
    entry.host = host;
    entry.pid = 4711;
    entry.started = started;
    fs::create_directory(entry.directory);
    std::ofstream(entry.directory + "/run.lock") << "4711\n";
    REQUIRE(register_job({{path()}, name}, entry).has_value());
    return entry;
  }
  void end(const JobEntry& entry, int code) const {
    std::ofstream(entry.directory + "/report.json") << "{\"exit_code\":" << code << ",\"why\":null}";
  }
};

std::string found(const std::vector<JobEntry>& jobs, std::string_view id) {
  const auto job = find_job(jobs, id);
  return job ? job->name : job.error().text;
}

TEST_CASE("a job is found by the beginning of its id, and the newest one without an id") {
  const JobsDirectory directory;
  directory.add("run7", "run7.1", "2026-01-02");
  directory.add("run7", "run7.2", "2026-01-03");
  directory.add("run70", "run70.1", "2026-01-04");
  directory.add("other", "other.1", "2026-01-01");
  const auto jobs = read_jobs({directory.path()});
  REQUIRE(jobs.size() == 4);
  CHECK(jobs.front().name == "other.1");
  CHECK(found(jobs, "") == "run70.1");
  CHECK(found(jobs, "run7") == "run7.2");  // exact, and the newest of its runs
  CHECK(found(jobs, "run7.1") == "run7.1");
  CHECK(found(jobs, "run70") == "run70.1");
  CHECK(found(jobs, "ot") == "other.1");
  CHECK(found(jobs, "ru") == "ru begins several jobs: run7, run70");
  CHECK(found(jobs, "x") == "no job begins with x; ddplaunch ps --all lists all");
  CHECK(found({}, "") == "there is no job of yours on this machine");
}

TEST_CASE("a verb that ends or deletes takes no beginning of a name that a person gave") {
  const JobsDirectory directory;
  directory.add("run10", "run10.1", "2026-01-02");
  directory.add("20261129-094344-f1b478", "20261129-094344-f1b478.1", "2026-01-03");
  const auto jobs = read_jobs({directory.path()});
  const auto whole = [&jobs](std::string_view id) {
    const auto job = find_job(jobs, id, true);
    return job ? job->name : job.error().text;
  };
  CHECK(whole("run10") == "run10.1");
  CHECK(whole("run10.1") == "run10.1");
  CHECK(whole("run1") == "no job is called run1; here a name must be complete, such as run10");
  CHECK(whole("20261129-0943") == "20261129-094344-f1b478.1");
  CHECK(whole("x") == "no job begins with x; ddplaunch ps --all lists all");
}

TEST_CASE("a job that runs precedes newer ones that have ended, and of several one must be named") {
  const JobsDirectory directory;
  const auto run = [](const JobEntry& job) {
    UniqueFd lock(::open((job.directory + "/run.lock").c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(::flock(lock.get(), LOCK_EX | LOCK_NB) == 0);
    return lock;
  };
  const JobRegistration where{{directory.path()}, "run7.9"};
  const UniqueFd first = run(directory.add("run7", "run7.1", "2026-01-01"));
  directory.add("run7", "run7.2", "2026-01-02");
  directory.add("run8", "run8.1", "2026-01-03");
  auto jobs = read_jobs(where.directories);
  for (const char* id : {"", "run", "run7", "run7.1"})
    CHECK(found(jobs, id) == "run7.1");
  CHECK(found(jobs, "run7.2") == "run7.2");
  CHECK(found(jobs, "run8") == "run8.1");
  CHECK(claim_job_id(where, "run7").has_error());
  for (const char* id : {"run", "run8", "run7.1"})
    CHECK(claim_job_id(where, id).has_value());
  {
    const UniqueFd second = run(directory.add("run9", "run9.1", "2026-01-04"));
    jobs = read_jobs(where.directories);
    CHECK(found(jobs, "") == "several jobs run; name one of them: run7, run9");
    CHECK(found(jobs, "ru") == "ru names several jobs that run: run7, run9");
    CHECK(found(jobs, "run7") == "run7.1");
  }
  // A disk may show that the id is in use on another host.
  const UniqueFd other = run(directory.add("far", "far.1", "2026-01-05", "login2"));
  CHECK(claim_job_id(where, "far").has_error());
}

TEST_CASE("a job that answers nobody any more has ended a moment later") {
  const JobsDirectory directory;
  const JobEntry job = directory.add("run7", "run7.1", "2026-01-01");
  const UniqueFd lock(::open((job.directory + "/run.lock").c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::flock(lock.get(), LOCK_EX | LOCK_NB) == 0);
  std::thread ddplaunch([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    directory.end(job, 3);
  });
  let_end(job, std::chrono::minutes(1));
  const RunState state = state_of(job);
  ddplaunch.join();
  CHECK(state.kind == RunState::Kind::kEnded);
  CHECK(state.exit_code == 3);
}

TEST_CASE("files that are no entries are skipped") {
  const JobsDirectory directory;
  std::ofstream(directory.path() + "/broken.job") << "{\"job\":";
  std::ofstream(directory.path() + "/relative.job") << R"({"job":"a","directory":"b"})";
  std::ofstream(directory.path() + "/number.job") << R"({"job":7,"directory":"/b"})";
  CHECK(read_jobs({directory.path(), directory.path() + "/missing"}).empty());
}

TEST_CASE("an entry is written once, into the first directory that takes it") {
  const JobsDirectory directory;
  const std::string file = directory.path() + "/file";
  std::ofstream{file};
  JobEntry entry;
  entry.name = entry.job = "run7";
  entry.directory = "/jobs/run7";
  CHECK(register_job({{file + "/jobs", directory.path() + "/jobs"}, "run7"}, entry).has_value());
  CHECK(read_jobs({directory.path() + "/jobs"}).size() == 1);
  CHECK(register_job({{directory.path() + "/jobs"}, "run7"}, entry).has_error());
}

TEST_CASE("the end in the journal counts where the report is missing or cut off") {
  const JobsDirectory directory;
  const JobEntry entry = directory.add("run7", "run7", "2026-01-02");
  const auto state_after = [&](const std::string& journal, const std::string& host = host_name()) {
    std::ofstream(entry.directory + "/events.jsonl") << journal;
    JobEntry there = entry;
    there.host = host;
    const RunState state = state_of(there);
    return std::string(state_name(state.kind)) + ' ' + std::to_string(state.exit_code.value_or(-1)) +
           state.why;
  };
  const std::string began = std::string(40'000, ' ') + R"({"id":1,"event":"job_started"})" + '\n';
  const std::string end = R"({"id":2,"event":"job_ended","reason":null,"exit_code":0})";
  CHECK(state_after(began) == "crashed -1");
  CHECK(state_after(began, "login2") == "elsewhere -1");
  CHECK(state_after(began + end + '\n') == "ended 0");
  CHECK(state_after(began + end + '\n', "login2") == "ended 0");
  CHECK(state_after(began + R"({"event":"job_ended","reason":"rank 3","exit_code":3})" + '\n') ==
        "ended 3rank 3");
  CHECK(state_after(end + '\n' + began) == "crashed -1");
  CHECK(state_after(began + end.substr(0, 30)) == "crashed -1");  // the disk was full
  CHECK(state_after(began + R"({"event":"job_ended","exit_code":null})" + '\n') == "crashed -1");
  std::ofstream(entry.directory + "/report.json") << R"({"exit_code":)";
  CHECK(state_after(began + end + '\n') == "ended 0");
}

TEST_CASE("pruning keeps the newest jobs, what may run elsewhere, and what is no job's") {
  const JobsDirectory directory;
  for (int number = 0; number < 6; ++number) {
    const std::string name = "run" + std::to_string(number);
    const JobEntry entry = directory.add(name, name, name, number == 0 ? "login2" : host_name());
    if (number != 0) directory.end(entry, 0);
    timespec times[2] = {{1'700'000'000 + number, 0}, {1'700'000'000 + number, 0}};
    for (const char* file : {"/run.lock", "/report.json", ".job"})
      ::utimensat(AT_FDCWD, (entry.directory + file).c_str(), times, 0);
  }
  fs::create_directory(directory.path() + "/notes");
  prune_jobs({{directory.path()}, "", 3});
  std::set<std::string> left;
  for (const auto& job : read_jobs({directory.path()}))
    left.insert(job.name);
  CHECK(left == std::set<std::string>{"run0", "run3", "run4", "run5"});
  CHECK(fs::exists(directory.path() + "/run0"));
  CHECK_FALSE(fs::exists(directory.path() + "/run1"));
  CHECK(fs::exists(directory.path() + "/notes"));
  prune_jobs({{directory.path()}, "", 0});
  CHECK(read_jobs({directory.path()}).size() == 4);
}

TEST_CASE("pruning deletes a job of another host whose journal alone has its end") {
  const JobsDirectory directory;
  const char* const journals[] = {"", "{\"event\":\"job_started\"}\n",
                                  "{\"event\":\"job_ended\",\"reason\":null,\"exit_code\":0}\n",
                                  "{\"event\":\"job_ended\",\"reason\":null,\"exit"};
  for (int number = 0; number < 5; ++number) {
    const std::string name = "run" + std::to_string(number);
    const JobEntry entry = directory.add(name, name, name, "login2");
    if (number < 4)
      std::ofstream(entry.directory + "/events.jsonl") << journals[number];
    else
      directory.end(entry, 0);
  }
  std::ofstream(directory.path() + "/run1/report.json.reserved") << std::string(100, '\0');
  directory.add("new", "new", "new", host_name());
  timespec times[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
  for (int number = 0; number < 5; ++number)
    for (const char* file : {"/run.lock", "/report.json", "/events.jsonl", ".job"})
      ::utimensat(AT_FDCWD, (directory.path() + "/run" + std::to_string(number) + file).c_str(), times, 0);
  prune_jobs({{directory.path()}, "", 1});
  std::set<std::string> left;
  for (const auto& job : read_jobs({directory.path()}))
    left.insert(job.name);
  CHECK(left == std::set<std::string>{"new", "run0", "run1", "run3"});
}

TEST_CASE("within an hour, jobs are deleted only when an eighth more than the limit are kept") {
  const JobsDirectory directory;
  const auto add_until = [&](int count) {
    for (int number = static_cast<int>(read_jobs({directory.path()}).size()); number < count; ++number) {
      const std::string name = "run" + std::to_string(number);
      directory.end(directory.add(name, name, name, host_name()), 0);
    }
    prune_jobs({{directory.path()}, "", 8});
    return read_jobs({directory.path()}).size();
  };
  CHECK(add_until(8) == 8);
  CHECK(add_until(9) == 9);
  CHECK(add_until(10) == 8);
}

}  // namespace
}  // namespace ddp::launcher

#include <string>

#include "apps/ddplaunch/options/options.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::launcher::fault_line;
using ddp::test::FakeContext;
using ddp::test::kHistoryNow;
using ddp::test::Texts;

namespace {

constexpr char kOwn[] = "/home/ann/.local/state/ddplaunch/hosts";

/// gpu02 is bad, gpu03 is worse, and gpu04 failed once.
FakeContext with_history(const std::string& directory = kOwn) {
  FakeContext world;
  world.directories.insert(directory);
  const auto line = [](const char* host, const char* cause) {
    return fault_line({host, kHistoryNow, cause, std::string(cause) != "lost", "run7"});
  };
  world.histories[directory] = line("gpu02", "lost") + line("gpu02", "lost") + line("gpu03", "Xid 79") +
                               line("gpu04", "lost") + line("head", "Xid 48");
  return world;
}

std::string names_of(const ddp::RunJob& job) {
  std::string names;
  for (const ddp::remote::Host& host : job.spec.hosts)
    names += (names.empty() ? "" : " ") + host.name;
  return names;
}

}  // namespace

TEST_CASE("a job says which of its hosts failed lately") {
  const FakeContext world = with_history();
  const auto job = world.job({"--host", "gpu01,gpu02,gpu03,gpu04", "./prog"});
  CHECK(job.notes == Texts{"ddplaunch: gpu02: 2 failures in 7 days (lost)",
                           "ddplaunch: gpu03: 1 failure in 7 days (Xid 79)",
                           "ddplaunch: gpu04: 1 failure in 7 days (lost)"});
  CHECK(job.spec.host_history == kOwn);
  CHECK(names_of(job) == "gpu01 gpu02 gpu03 gpu04");
  CHECK(world.job({"./prog"}).notes == Texts{"ddplaunch: localhost: 1 failure in 7 days (Xid 48)"});
  CHECK(world.job({"--host-history", "none", "--host", "gpu02", "./prog"}).notes.empty());
  CHECK(world.spec({"--host-history", "none", "./prog"}).host_history.empty());
  const auto check = world.job({"check", "--host", "gpu01,gpu02"});
  CHECK(check.notes.empty());
  REQUIRE(check.bad_record.size() == 1);
  CHECK(check.bad_record[0].host == "gpu02");
}

TEST_CASE("--avoid-bad-hosts leaves them to the spares, the worst last") {
  const FakeContext world = with_history();
  const auto spares =
      world.job({"--host", "gpu03,gpu02,gpu01,gpu04,gpu05", "--spares", "1", "--avoid-bad-hosts", "./prog"});
  CHECK(names_of(spares) == "gpu01 gpu04 gpu05 gpu02 gpu03");
  CHECK(spares.notes ==
        Texts{"ddplaunch: gpu04: 1 failure in 7 days (lost)",
              "ddplaunch: gpu02: 2 failures in 7 days (lost); it is used, since no other host is left",
              "ddplaunch: gpu03: 1 failure in 7 days (Xid 79); it is a spare"});
  const auto fewer =
      world.job({"--host", "gpu03,gpu02,gpu01", "--nnodes", "1", "--avoid-bad-hosts", "./prog"});
  CHECK(names_of(fewer) == "gpu01 gpu02 gpu03");
  CHECK(fewer.notes == Texts{"ddplaunch: gpu02: 2 failures in 7 days (lost); it is not used",
                             "ddplaunch: gpu03: 1 failure in 7 days (Xid 79); it is not used"});
  const auto total =
      world.job({"--host", "gpu03:2,gpu01:2,gpu05:2", "-n", "3", "--avoid-bad-hosts", "./prog"});
  CHECK(names_of(total) == "gpu01 gpu05 gpu03");
  CHECK(hosts_used(total.spec) == 2);
}

TEST_CASE("a job that needs all its hosts keeps their order") {
  const FakeContext world = with_history();
  const auto job = world.job({"--host", "gpu03,gpu01", "--avoid-bad-hosts", "./prog"});
  CHECK(names_of(job) == "gpu03 gpu01");
  CHECK(job.notes ==
        Texts{"ddplaunch: gpu03: 1 failure in 7 days (Xid 79); it is used, since no other host is left"});
}

TEST_CASE("a note for each of many hosts would hide the others") {
  FakeContext world;
  std::string hosts;
  for (int i = 10; i < 25; ++i) {
    const std::string host = "gpu" + std::to_string(i);
    hosts += (i == 10 ? "" : ",") + host;
    world.histories[kOwn] += fault_line({host, kHistoryNow, "lost", false, "run7"});
  }
  const auto notes = world.job({"--host", hosts, "./prog"}).notes;
  REQUIRE(notes.size() == 11);
  CHECK(notes.back() == "ddplaunch: 5 more hosts failed lately; ddplaunch hosts --history lists them");
}

TEST_CASE("a given directory must be there and usable") {
  FakeContext world = with_history("/shared/hosts");
  CHECK(world.job({"--host-history", "/shared/hosts", "--host", "gpu02", "./prog"}).notes.size() == 1);
  CHECK(world.errors({"--host-history", "/gone", "./prog"}) ==
        Texts{"ddplaunch: --host-history /gone: No such file or directory; make the directory first, for "
              "several users with chmod 1777"});
  world.histories["/shared/hosts"] = "untrusted";
  CHECK(world.errors({"--host-history", "/shared/hosts", "./prog"}) ==
        Texts{"ddplaunch: --host-history /shared/hosts is no directory"});
  world.histories[kOwn] = "untrusted";
  CHECK(world.job({"./prog"}).notes ==
        Texts{"ddplaunch: host history: " + std::string(kOwn) + " is no directory"});
}

TEST_CASE("what needs a history says that there is none") {
  FakeContext world = with_history();
  CHECK(world.errors({"--host-history", "none", "--avoid-bad-hosts", "./prog"}) ==
        Texts{"ddplaunch: there is no host history: --host-history is none"});
  CHECK(world.errors({"--history", "./prog"}).size() == 1);
  const auto job = world.job({"hosts", "--history", "--forget", "gpu07", "--forget", "gpu08"});
  CHECK(job.history);
  CHECK(job.forget == Texts{"gpu07", "gpu08"});
  world.env = {{"PATH", "/usr/bin"}};
  CHECK(world.errors({"hosts", "--history"}) ==
        Texts{"ddplaunch: there is no host history: HOME is not set"});
  CHECK(world.spec({"./prog"}).host_history.empty());
}

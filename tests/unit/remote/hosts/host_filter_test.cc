#include "remote/hosts/host.h"

#include "remote/hosts/hostfile.h"
#include "tests/support/catch.h"

using ddp::remote::Diagnostic;
using ddp::remote::filter_hosts;
using ddp::remote::Host;
using ddp::remote::parse_hostfile;
using Texts = std::vector<std::string>;

namespace {

const std::string kFile = "gpu01 slots=4\ngpu02 slots=4\ngpu03 slots=2 gpus=5,7\nplain\n[::1]:2\n";

// Returns text like "gpu01:2(0,2) gpu02:4".
std::string filtered(const std::string& include, const std::string& exclude,
                     const std::string& file = kFile) {
  auto kept = filter_hosts(*parse_hostfile(file, "hosts"), include, exclude);
  if (!kept) {
    for (const Diagnostic& diagnostic : kept.error().list)
      UNSCOPED_INFO(to_text(diagnostic));
  }
  REQUIRE(kept.has_value());
  std::string text;
  for (const Host& host : *kept) {
    text += (text.empty() ? "" : " ") + host.name + (host.slots ? ':' + std::to_string(*host.slots) : "");
    std::string devices;
    for (const std::string& device : host.devices)
      devices += (devices.empty() ? "" : ",") + device;
    if (!devices.empty()) text += '(' + devices + ')';
  }
  return text;
}

Texts refused(const std::string& include, const std::string& exclude, const std::string& file = kFile) {
  auto kept = filter_hosts(*parse_hostfile(file, "hosts"), include, exclude);
  REQUIRE_FALSE(kept.has_value());
  Texts texts;
  for (const Diagnostic& diagnostic : kept.error().list)
    texts.push_back(to_text(diagnostic));
  return texts;
}

}  // namespace

TEST_CASE("No filter keeps all") {
  CHECK(filtered("", "") == "gpu01:4 gpu02:4 gpu03:2(5,7) plain ::1:2");
}

TEST_CASE("Include keeps hosts and slots, in the order of the file") {
  CHECK(filtered("gpu02@gpu01", "") == "gpu01:4 gpu02:4");
  CHECK(filtered("gpu02:0,2@gpu01", "") == "gpu01:4 gpu02:2(0,2)");
  CHECK(filtered("gpu02:2,0", "") == "gpu02:2(0,2)");
  CHECK(filtered("gpu02:1-3", "") == "gpu02:3(1,2,3)");
  CHECK(filtered("gpu[01-02]:0,1", "") == "gpu01:2(0,1) gpu02:2(0,1)");
  CHECK(filtered("GPU01", "") == "gpu01:4");
  CHECK(filtered("[::1]:1", "") == "::1:1(1)");
  CHECK(filtered("::1", "") == "::1:2");
}

TEST_CASE("Entries for one host add up") {
  CHECK(filtered("gpu01:0@gpu01:3", "") == "gpu01:2(0,3)");
  CHECK(filtered("gpu01:0@gpu01", "") == "gpu01:4");
}

TEST_CASE("The user of a host may be in front of it") {
  const std::string file = "root@gpu01 slots=2\ngpu[02-03] slots=2 user=root\nroot@::1\ngpu04 slots=2\n";
  CHECK(filtered("root@gpu01", "", file) == "gpu01:2");
  CHECK(filtered("root@gpu01:1@root@gpu[02-03]@gpu04@root@::1", "", file) ==
        "gpu01:1(1) gpu02:2 gpu03:2 ::1 gpu04:2");
  CHECK(filtered("", "gpu04@root@GPU02@root@[::1]", file) == "gpu01:2 gpu03:2");
  CHECK(refused("root@gpu04", "", file) == Texts{"--include, column 1: host root is not in hosts"});
  CHECK(refused("you@gpu01", "", file) == Texts{"--include, column 1: host you is not in hosts"});
  CHECK(refused("gpu01@root", "", file) == Texts{"--include, column 7: host root is not in hosts"});
}

TEST_CASE("A host without slots accepts any slot, and then has as many") {
  CHECK(filtered("plain:0,6", "") == "plain:2(0,6)");
  CHECK(filtered("plain", "") == "plain");
}

TEST_CASE("Slots index the devices of gpus=") {
  CHECK(filtered("gpu03:1", "") == "gpu03:1(7)");
}

TEST_CASE("Exclude removes hosts and slots") {
  CHECK(filtered("", "gpu01@gpu03@plain@::1") == "gpu02:4");
  CHECK(filtered("", "gpu01:0@gpu[02-03]@plain@[::1]") == "gpu01:3(1,2,3)");
  CHECK(filtered("", "gpu01:0-3@gpu02@plain@::1") == "gpu03:2(5,7)");
  CHECK(filtered("", "gpu03:0@gpu01@gpu02@plain@::1") == "gpu03:1(7)");
}

TEST_CASE("A filter that cannot apply is an error") {
  CHECK(refused("gpu01", "gpu02") ==
        Texts{"--include and --exclude cannot be used together; use one of them"});
  CHECK(refused("gpu01@gpu1", "") ==
        Texts{"--include, column 7: host gpu1 is not in hosts; did you mean gpu01?"});
  CHECK(refused("", "zebra") == Texts{"--exclude, column 1: host zebra is not in hosts"});
  CHECK(refused("gpu01:4", "") ==
        Texts{"--include, column 1: gpu01 has no slot 4: slots=4 in hosts:1 makes 0 to 3"});
  CHECK(refused("", "gpu01:0,9@gpu02:x") ==
        Texts{"--exclude, column 1: gpu01 has no slot 9: slots=4 in hosts:1 makes 0 to 3",
              "--exclude, column 17: \"x\" is not a slot number; slots are numbered from 0, and hosts are "
              "separated "
              "by '@': gpu01:0,2@gpu02"});
  CHECK(refused("a", "", "b slots=1\n") ==
        Texts{"--include, column 1: host a is not in hosts; did you mean b?"});
  CHECK(refused("b:1", "", "b slots=1\n") ==
        Texts{"--include, column 1: b has no slot 1: slots=1 in hosts:1 makes 0"});
  CHECK(refused("", "plain:0") ==
        Texts{"--exclude: slots of plain cannot be excluded: hosts:4 does not say how many "
              "it has; add slots=N there"});
  CHECK(refused("", "gpu[01-03]@plain@::1") == Texts{"--exclude: no host is left to run on"});
}

TEST_CASE("A malformed filter is an error") {
  CHECK(refused("gpu01@", "") ==
        Texts{"--include, column 7: a host is missing; the form is gpu01:0,2@gpu02"});
  CHECK(refused("gpu01:", "") == Texts{"--include, column 7: empty entry in a list of devices"});
  CHECK(refused("gpu01:3-1", "") == Texts{"--include, column 7: range 3-1 is reversed; write 1-3"});
  CHECK(refused("gpu[01", "") == Texts{"--include, column 4: \"[\" has no \"]\""});
  CHECK(
      refused("gpu01,gpu02", "") ==
      Texts{
          "--include, column 6: ',' separates the slots of one host; hosts are separated by '@': gpu01@gpu02 "
          "or gpu01:0,2@gpu02"});
  CHECK(
      refused("gpu01:0,gpu02:1", "") ==
      Texts{"--include, column 7: \"gpu02:1\" is not a slot number; slots are numbered from 0, and hosts are "
            "separated by '@': gpu01:0,2@gpu02"});
  CHECK(refused("gpu01 gpu02", "") == Texts{"--include, column 6: byte 0x20 is not allowed in a host name"});
  CHECK(refused("[::1]x", "") ==
        Texts{"--include, column 6: expected ':' and slots after the host, as in gpu01:0,2"});
}

// Results of DeepSpeed's launcher for its own options (parse_resource_filter). Its intended behavior holds
// here, too; the bugs of its versions do not.
TEST_CASE("Filters of DeepSpeed's command lines choose the same hosts") {
  const std::string file = "worker-0 slots=4\nworker-1 slots=4\n";
  struct Row {
    const char* include;
    const char* exclude;
    const char* expected;
  };
  const Row rows[] = {
      // A whole host, and some of its slots.
      {"worker-1", "", "worker-1:4"},
      {"worker-1:0,3", "", "worker-1:2(0,3)"},
      {"worker-0@worker-1:0,2", "", "worker-0:4 worker-1:2(0,2)"},
      // The order is the file's, slots are sorted, and duplicates count once.
      {"worker-1:3,0@worker-0", "", "worker-0:4 worker-1:2(0,3)"},
      {"worker-1:0@worker-1:2", "", "worker-1:2(0,2)"},
      {"", "worker-0", "worker-1:4"},
      {"", "worker-1:0", "worker-0:4 worker-1:3(1,2,3)"},
      {"", "worker-0:0,1@worker-1:2,3", "worker-0:2(2,3) worker-1:2(0,1)"},
      // A host without remaining slots is removed.
      {"", "worker-0:0,1,2,3", "worker-1:4"},
      {"worker-0:0,1,1", "", "worker-0:2(0,1)"},
      {"worker-1:1-3,2", "", "worker-1:3(1,2,3)"},
      {"", "worker-0:0,0@worker-1", "worker-0:3(1,2,3)"},
      {"", "", "worker-0:4 worker-1:4"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.include);
    CAPTURE(row.exclude);
    CHECK(filtered(row.include, row.exclude, file) == row.expected);
  }
  // These are errors in DeepSpeed, too, except that --include has accepted unknown slots in some versions.
  CHECK(refused("worker-0", "worker-1", file).size() == 1);
  CHECK(refused("worker-2", "", file).size() == 1);
  CHECK(refused("", "worker-2:0", file).size() == 1);
  CHECK(refused("worker-0:4", "", file).size() == 1);
  CHECK(refused("", "worker-0:9", file).size() == 1);
  CHECK(refused("", "worker-0@worker-1", file).size() == 1);
}
